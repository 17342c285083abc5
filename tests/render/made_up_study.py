"""A study with every outcome in it. All numbers are made up: they are test data, not results."""

from __future__ import annotations

import random

from togi.core.records import (
    Choice,
    ErrorReport,
    Facts,
    Footprint,
    Interval,
    LeafError,
    Machine,
    Noise,
    Outcome,
    Recipe,
    Stage,
    Study,
    TensorFacts,
    Timing,
    Trial,
)

MIB = 1024**2

CHANNELS_LAST = Choice(stage=Stage.LAYOUT, technique="channels_last")
FOLD = Choice(stage=Stage.REWRITE, technique="fold_batch_norm")
BF16 = Choice(stage=Stage.PRECISION, technique="bf16")
INT8 = Choice(stage=Stage.PRECISION, technique="int8_openvino")
OPENVINO = Choice(stage=Stage.ENGINE, technique="openvino")
ONNX = Choice(stage=Stage.ENGINE, technique="onnxruntime")
SCRIPT = Choice(stage=Stage.ENGINE, technique="torchscript", options={"freeze": True, "optimize": True})
COMPILE = Choice(stage=Stage.ENGINE, technique="torch_compile", options={"mode": "max-autotune", "freezing": True})
AOTI = Choice(stage=Stage.ENGINE, technique="aot_inductor")
TENSORRT = Choice(stage=Stage.ENGINE, technique="torch_tensorrt")
NO_GRAD = Choice(stage=Stage.RUNTIME, technique="no_grad")
INFERENCE = Choice(stage=Stage.RUNTIME, technique="inference_mode")
ALLOCATOR = Choice(stage=Stage.RUNTIME, technique="faster_allocator", options={"library": "jemalloc"})
THREADS = Choice(stage=Stage.RUNTIME, technique="threads", options={"count": 1})

HOSTILE = "<script>document.title='owned'</script><img src=x onerror=alert(1)>\"'&</td></table>]]>\x1b[31m"


def recipe(*choices: Choice) -> Recipe:
    return Recipe(choices=choices)


def machine() -> Machine:
    return Machine(
        cpu_model="Made-up CPU @ 2.50GHz",
        cpu_flags=("avx2", "avx512f", "avx512_vnni"),
        cpu_cores=2,
        memory_bytes=24 * 1024**3,
        threads=2,
        os="Linux 6.1 (Debian 12)",
        python="3.11.2",
        versions={"torch": "2.15.0", "onnxruntime": "1.30.0", "openvino": "2026.3.0"},
        compiler="g++ 12.2.0",
    )


def timed(
    latency_ms: float, speedup_x: float, *, half: float = 0.02, seed: int = 1, noise: Noise | None = None
) -> Timing:
    """Rounds that scatter round the given numbers, from a seed."""
    dice = random.Random(seed)
    reference_ms = latency_ms * speedup_x
    rounds = tuple(
        (reference_ms * dice.lognormvariate(0, half), latency_ms * dice.lognormvariate(0, half)) for _ in range(24)
    )
    return Timing(
        latency_ms=Interval(median=latency_ms, low=latency_ms * (1 - half), high=latency_ms * (1 + half)),
        speedup_x=Interval(median=speedup_x, low=speedup_x * (1 - half), high=speedup_x * (1 + half)),
        rounds_ms=rounds,
        first_call_ms=latency_ms * 7,
        build_s=1.4,
        noise=noise or Noise(spread=0.031, waiting=0.02, stolen=0.001, neighbours=0.1),
    )


def right(units: float, rmse: float | None = None) -> ErrorReport:
    rmse = units * 2.4e-7 if rmse is None else rmse
    return ErrorReport(
        faithful=units < 10,
        units=units,
        rmse=rmse,
        max_abs=rmse * 5,
        leaves=(LeafError(name="output", rmse=rmse, max_abs=rmse * 5, units=units),),
    )


def ran(
    recipe: Recipe, latency_ms: float, speedup_x: float, units: float, mib: tuple[float, float], **more: object
) -> Trial:
    timing = more.pop("timing", None) or timed(latency_ms, speedup_x, seed=len(recipe.label))
    return Trial(
        recipe=recipe,
        outcome=Outcome.OK,
        timing=timing,
        error=right(units),
        footprint=Footprint(idle_bytes=int(mib[0] * MIB), peak_bytes=int(mib[1] * MIB)),
        cost_s=6.2,
        phases_s={"start": 0.04, "build": 1.4, "verify": 0.9, "warm": 0.6, "measure": 3.1},
        **more,
    )


def made_up_study(subject: str = "examples/photos.py:subject") -> Study:
    """Seventeen recipes, eighteen trials, one every eight seconds: one finalist was measured again in the race."""
    best = recipe(FOLD, OPENVINO, INFERENCE)
    second = recipe(FOLD, CHANNELS_LAST, ONNX, INFERENCE)
    noisy = Noise(
        spread=0.21,
        waiting=0.18,
        stolen=0.02,
        neighbours=1.1,
        warnings=("other processes kept 1.1 cores busy while this was measured",),
    )
    trials = (
        ran(recipe(NO_GRAD), 41.8, 1.0, 1.0, (18.7, 22.4)),
        ran(recipe(CHANNELS_LAST, NO_GRAD), 30.9, 1.353, 1.1, (19.1, 21.0)),
        ran(recipe(FOLD, NO_GRAD), 36.2, 1.155, 1.2, (18.5, 19.6)),
        ran(recipe(INFERENCE), 41.5, 1.007, 1.0, (18.7, 22.4)),
        ran(recipe(OPENVINO, INFERENCE), 14.9, 2.805, 1.9, (61.2, 9.7)),
        ran(best, 13.4, 3.119, 2.1, (58.9, 9.5)),
        ran(recipe(ONNX, INFERENCE), 17.2, 2.430, 1.2, (40.3, 12.9)),
        ran(second, 16.1, 2.596, 1.3, (39.9, 12.8), notes=("ONNX Runtime transposes the inputs itself",)),
        ran(recipe(SCRIPT, NO_GRAD), 22.8, 1.833, 1.4, (30.1, 16.2)),
        ran(
            recipe(BF16, NO_GRAD),
            44.0,
            0.95,
            12_400,
            (12.0, 15.1),
            reason="approximate: 12,400 x eager's own error, allowed by --allow bf16 --max-error 1e-2",
            timing=timed(44.0, 0.95, half=0.09, seed=5, noise=noisy),
        ),
        Trial(
            recipe=recipe(TENSORRT, NO_GRAD),
            outcome=Outcome.REFUSED,
            reason="it needs a CUDA device, and the subject is on the CPU",
        ),
        Trial(
            recipe=recipe(ALLOCATOR, NO_GRAD),
            outcome=Outcome.MISSING,
            reason="libjemalloc is not installed",
            fix="apt-get install libjemalloc2",
        ),
        Trial(
            recipe=recipe(INT8, OPENVINO, NO_GRAD),
            outcome=Outcome.WRONG,
            reason="58,300 x eager's own error (1.4e-02 relative): --allow int8_openvino accepts it within a bound",
            error=right(58_300, 1.4e-2),
            cost_s=21.0,
            phases_s={"start": 0.04, "build": 18.9, "verify": 1.1},
        ),
        Trial(
            recipe=recipe(AOTI, NO_GRAD),
            outcome=Outcome.FAILED,
            stage="aot_inductor",
            reason="CppCompileError: C++ compile error",
            traceback='Traceback (most recent call last):\n  File "worker.py", line 88, in build\n'
            "    program = engine.apply(candidate, options)\nCppCompileError: C++ compile error\n",
            output="In file included from main.cpp:2:\nfatal error: omp.h: No such file or directory",
            cost_s=7.7,
            phases_s={"start": 0.04, "build": 7.6},
        ),
        Trial(
            recipe=recipe(COMPILE, NO_GRAD),
            outcome=Outcome.TIMED_OUT,
            stage="build",
            reason="building took longer than 60 s",
            cost_s=60.1,
        ),
        Trial(
            recipe=recipe(CHANNELS_LAST, SCRIPT, NO_GRAD),
            outcome=Outcome.CRASHED,
            stage="warm",
            reason="the child was killed by SIGSEGV",
            output=HOSTILE,
            traceback=HOSTILE,
        ),
        Trial(
            recipe=recipe(THREADS, NO_GRAD),
            outcome=Outcome.UNSTABLE,
            stage="measure",
            reason="the interval of the speed-up stayed wider than 30 % after 60 rounds",
            timing=timed(70.0, 0.6, half=0.3, noise=noisy),
            error=right(1.0),
        ),
        ran(best, 13.3, 3.142, 2.1, (58.9, 9.5)),
    )
    trials = tuple(trial.model_copy(update={"ended_s": 12.0 + 8 * at}) for at, trial in enumerate(trials))
    return Study(
        id="5f2c9a7be1d0",
        subject=subject,
        facts=facts(),
        settings={
            "device": "cpu",
            "effort": "normal",
            "time_limit_s": 240.0,
            "seed": 0,
            "allow": ["bf16"],
            "max_error": 0.01,
        },
        started="2026-11-21T03:12:45Z",
        trials=trials,
        finalists=(best, second),
        best=best,
        verdict="3.14x the speed of plain eager (3.08-3.21), faithful: 2.1 x eager's own error.",
        command="togi tune examples/photos.py:subject --allow bf16 --max-error 1e-2 --time-limit 4m",
    )


def facts() -> Facts:
    return Facts(
        machine=machine(),
        module_class="EfficientNet",
        modules={"Conv2d": 49, "BatchNorm2d": 49, "Linear": 1},
        parameters=4_652_008,
        parameter_bytes=18_608_032,
        parameter_dtypes=("float32",),
        training=True,
        inputs=(TensorFacts(name="inputs", dtype="float32", shape=(None, 3, 224, 224)),),
        outputs=(TensorFacts(name="output", dtype="float32", shape=(None, 1000)),),
        samples=2,
        flops=790_000_000,
        latency_ms=43.0,
        notes=("it was handed over in training mode: togi tunes and proves it in eval()",),
    )


def hostile_study() -> Study:
    """Every text that comes from outside is hostile."""
    study = made_up_study(subject=HOSTILE)
    choice = Choice(stage=Stage.ENGINE, technique=HOSTILE, options={HOSTILE: HOSTILE})
    trial = Trial(
        recipe=recipe(choice, NO_GRAD),
        outcome=Outcome.FAILED,
        reason=HOSTILE,
        fix=HOSTILE,
        stage=HOSTILE,
        traceback=HOSTILE,
        output=HOSTILE,
        notes=(HOSTILE,),
        error=right(3.0),
        phases_s={HOSTILE: 1.0},
    )
    told = study.facts.model_copy(update={"notes": (HOSTILE,), "module_class": HOSTILE})
    return study.model_copy(
        update={
            "trials": (*study.trials, trial),
            "facts": told,
            "verdict": HOSTILE,
            "command": HOSTILE,
            "settings": {HOSTILE: HOSTILE},
        }
    )
