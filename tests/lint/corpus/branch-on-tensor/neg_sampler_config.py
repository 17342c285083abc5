# configuration and strings decide, inside a diffusion loop
import torch


@torch.no_grad()
def sample(unet, scheduler, latents, prompt_embeds, guidance_scale: float, mode: str):
    unet.eval()
    for i, t in enumerate(scheduler.timesteps_list):
        noise = unet(latents, t, prompt_embeds)
        if guidance_scale > 1.0:
            uncond, cond = noise.chunk(2)
            noise = uncond + guidance_scale * (cond - uncond)
        if mode in ("ddim", "euler") and i < len(scheduler.timesteps_list) - 1:
            latents = scheduler.step(noise, t, latents)
        assert latents.shape[1] == 4
    return latents
