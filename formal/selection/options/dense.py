"""The options of the phase `dense`: how the dense search bounds, separates, searches and branches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class DenseOptions:
    """How the dense search bounds, separates, searches and branches."""

    patience: int = 15
    """steps: without gain after which they get shorter, from the best state"""
    memory: float = 0.99
    """share: of the frequencies of decoded labels that stays from step to step"""
    step: float = 0.3
    """share of the gap: that a first step of the multipliers aims at"""
    step_factor: float = 0.6
    """factor: of the step after so many steps without gain"""
    least_step: float = 1e-4
    """share of the gap: the ascent ends below"""
    next_step: float = 0.01
    """share of the gap: least first step of what follows an ascent"""
    step_gain: float = 1e-5
    """share of the gap: a smaller gain is none"""
    averaged: float = 0.5
    """share: of the last direction in the next one"""
    phases: tuple[float, ...] = (5.0, 1.5, 0.5, 0.15)
    """gaps per vertex: temperatures of a first smoothed ascent"""
    again: tuple[float, ...] = (0.5, 0.15)
    """gaps per vertex: temperatures of later ones"""
    cool: tuple[float, ...] = (0.15,)
    """gaps per vertex: the temperature before a separation"""
    phase_steps: int = 100
    """double sweeps: per phase"""
    polish: int = 15
    """double sweeps: without smoothing after a phase: they tell its true bound"""
    reach: float = 0.005
    """share of the gap: that a multiplier step aims at, at the start of a phase"""
    fall: float = 0.05
    """factor: what is left of that at its end"""
    near: float = 0.003
    """share of the limit: violations that add up to less do not make steps longer"""
    cut_rows: int = 24
    """rows: looked at in one separation: those with the largest multipliers"""
    cuts_per_row: int = 2
    """MIR cuts: taken of one row and reference at a time"""
    modulus_parts: tuple[int, ...] = (1, 2, 4, 8)
    """divisors: moduli are differences of usage divided by these"""
    cut_share: float = 1e-3
    """share of the relaxed solution: labels with less do not count"""
    cut_gain: float = 1e-6
    """share of the limit: least violation beyond that of the plain row"""
    cut_narrow: float = 0.01
    """share of the modulus: moduli g with g - r below are left out: rounding errors of the multipliers would be blown
    up
    """
    root_steps: int = 60
    """ascent steps: before the first solution is looked for"""
    slice: int = 600
    """ascent steps: between two looks for solutions"""
    beyond: tuple[float, ...] = (0.0, 0.05)
    """share of the incumbent: how far above it the steps of the slices aim, in turn"""
    tree_labels: int = 20_000
    """labels: a core with more after fixing is branched on only when the bound has converged close to the incumbent"""
    close: float = 0.001
    """share of the incumbent: that counts as close"""
    rest: int = 4
    """slices: without MIR cuts after an attempt that gained nothing"""
    turns: int = 3
    """turns: of local search beside a slice of ascent, from the decoded and again from the best positions"""
    root_cuts: int = 8
    """MIR cuts: added at a time once a slice of ascent has hardly moved the bound"""
    cut_steps: int = 150
    """ascent steps: after them"""
    shrink: float = 0.9
    """share of the labels: a node is presolved again when at most so many survive fixing"""
    node_beyond: float = 0.01
    """share of the incumbent: how far above it the steps at a node aim"""
    trials: int = 8
    """vertices: tried before a node branches"""
    trial_steps: int = 20
    """ascent steps: of a trial"""
    node_cuts: int = 8
    """MIR cuts: added at a node"""
    progress: float = 0.03
    """share of the gap of the node above: a node is helped along until it has gained so much"""
    smooth_steps: int = 40
    """double sweeps: of the smoothed ascent that helps"""
    trial_labels: int = 6_000
    """labels: up to so many, trial steps for several vertices cost less than they save"""
    held: int = 3 << 30
    """bytes: a tree whose problems and messages take more ends there"""
    node_steps: int = 150
    """ascent steps: at a node"""
    node_moves: int = 300
    """moves: of the local search at a node"""
    node_rounds: int = 4
    """times: that the ascent of a node is helped along (MIR cuts, smoothing)"""
    guessed_gap: float = 0.3
    """share of the bound: the gap while no solution is known"""
    first_looks: int = 4
    """looks: for a first solution before the bound goes on without one"""
    converged_gain: float = 0.02
    """share of the gap: a slice that gains at most that has hardly moved the bound"""
    slice_step: float = 0.1
    """share of the gap: least first step of a slice"""
    renewed: float = 0.9
    """share of the incumbent: costs are clipped anew when a solution is cheaper than that of the last one"""
    cut_step: float = 0.2
    """share of the gap: first step after MIR cuts were added"""
    cut_cool_steps: int = 30
    """double sweeps: of the smoothed ascent before a separation at the root"""
    cut_idle: int = 2
    """rounds: of separation without gain after which they end"""
    cut_idle_gain: float = 0.005
    """share of the gap: a round that gains at most that gains nothing"""
    cut_worth: float = 0.01
    """share of the gap: an attempt that gains at most that is followed by slices without MIR cuts"""
    carried_step: float = 0.05
    """share of the gap: least first step from messages of an enclosing problem"""
    node_fit_rounds: int = 15
    """rounds: until a start at a node has to fit"""
    node_savings: tuple[float, ...] = (1.0, 0.3, 0.0)
    """factor of the prices: how much usage counts in local search at a node, in turn"""
    node_move: int = 40
    """vertices: of one move of local search at a node"""
    cold: float = 20.0
    """temperatures: entries that far above the least do not count in a soft minimum"""


DENSE: Final = DenseOptions()
"""As they are unless `solve` is told otherwise."""
