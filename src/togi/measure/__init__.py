"""Measures time and memory in turns, with how sure the figures are. No torch is imported here."""

from togi.measure.allocator import keep_all_memory, keep_freed_memory, with_own_heap
from togi.measure.interval import median_interval, ratio_interval, rounds_needed
from togi.measure.local import LocalRunner
from togi.measure.memory import MemoryMark, give_back_cache, held_by_others, mark_memory, measure_footprint
from togi.measure.noise import noise_of, undisturbed, usable, why_unusable
from togi.measure.race import Runner, race
from togi.measure.race_result import RaceEntry, RaceResult, RaceVerdict, together
from togi.measure.streams import callers_on, wait_for
from togi.measure.turn import TURN_MS, GivenAs, Turn, Warmup, call_ms_of, choose_passes, take_turn, warm

__all__ = [
    "TURN_MS",
    "GivenAs",
    "LocalRunner",
    "MemoryMark",
    "RaceEntry",
    "RaceResult",
    "RaceVerdict",
    "Runner",
    "Turn",
    "Warmup",
    "call_ms_of",
    "callers_on",
    "choose_passes",
    "give_back_cache",
    "held_by_others",
    "keep_all_memory",
    "keep_freed_memory",
    "mark_memory",
    "measure_footprint",
    "median_interval",
    "noise_of",
    "race",
    "ratio_interval",
    "rounds_needed",
    "take_turn",
    "together",
    "undisturbed",
    "usable",
    "wait_for",
    "warm",
    "why_unusable",
    "with_own_heap",
]
