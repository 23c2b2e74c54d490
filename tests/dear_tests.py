"""Tests that cost more than they could catch in an ordinary run, and what `make test` keeps that sees most of it.

They are marked `slow` when tests are collected (`conftest`), so `make test-slow` runs them.  A line holds a test, or
one of its parameters; seconds are of the processor (`DEAREST.md` says of which run).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

DEAR: Final[Mapping[str, str]] = MappingProxyType(
    {
        # documents: every console block of a page
        "test_readme.py::test_outputs[docs/exports.md]": "8.1: README; export_settings, exported_programs",
        "test_readme.py::test_outputs[docs/schedules.md]": "7.6: README; schedule_search",
        "test_readme.py::test_outputs[docs/training.md]": "6.8: README; training",
        "test_joint_page.py::test_commands_run": "5.3: joint",
        "test_joint_page.py::test_figures_are_found_again[row0]": "2.6: joint_search",
        # several freedoms
        "test_portfolio.py::test_a_rewritten_program_is_cut_into_stages": "13.3: passes of drawn renamings",
        "test_portfolio.py::test_the_json_has_one_scale": "5.1: kinds",
        "test_portfolio.py::test_every_combination_gives_one_file_that_is_never_worse[overlap-rewrites]": "4.2: three freedoms",
        "test_portfolio.py::test_the_same_steps_give_the_same_bytes": "3.8: work_limits",
        "test_portfolio.py::test_every_combination_gives_one_file_that_is_never_worse[stages-rewrites]": "2.4: three freedoms",
        "test_portfolio.py::test_every_combination_gives_one_file_that_is_never_worse[overlap]": "2.3: three freedoms",
        "test_portfolio.py::test_every_combination_gives_one_file_that_is_never_worse[rewrites]": "1.7: three freedoms",
        # stages
        "test_interleaved.py::test_no_line_is_above_a_schedule[Shape(groups=2, chunks=2, micro=2)-some]": "9.8: other shapes",
        "test_interleaved.py::test_no_line_is_above_a_schedule[Shape(groups=2, chunks=2, micro=5)-some]": "7.9: other shapes",
        "test_interleaved.py::test_the_command_line_plans_chunks": "5.9: chunks in Python",
        "test_pipeline_overlap.py::test_mpi_ranks_do_what_one_process_does": "6.7: virtual ranks; MPI of pipeline_run",
        "test_pipeline_overlap.py::test_no_placement_and_no_order_is_below_what_is_known_of_a_run": "5.8: all cuts and orders",
        "test_pipeline_overlap.py::test_the_command_line_and_python_plan_check_and_run_it": "5.7: portfolio",
        "test_pipeline_exchange.py::test_a_weight_of_several_stages_reaches_no_file_that_would_not_add_its_gradients": "5.6: refusals of export",
        "test_pipeline_exchange.py::test_mpi_ranks_send_once_a_step_what_virtual_ranks_do": "3.8: virtual ranks",
        "test_pipeline_audit.py::test_stages_have_equal_layers_and_the_placements_of_the_configuration": "3.3: the command line audits",
        "test_pipeline_units.py::test_stages_of_unit_options_are_near_the_best_ones_and_fit": "3.7: what fits",
        "test_pipeline_run.py::test_mpi_ranks_do_what_one_process_does[2x2 interleaved]": "2.8: 2x2",
        "test_pipelines.py::test_the_command_line_says_and_writes_it": "2.0: kinds, portfolio",
        "test_pipeline_audit.py::test_the_proof_of_the_bound_is_about_the_problem_with_the_configurations_choices": "2.1: the command line audits",
        # searches that are given up, limits
        "test_given_up.py::test_a_plan_whose_search_is_given_up_is_proved[pipelined-5]": "8.3: overlapped",
        "test_given_up.py::test_a_plan_whose_search_is_given_up_is_proved[together-5]": "7.7: overlapped, joint",
        "test_given_up.py::test_a_selection_search_that_is_given_up_has_a_checked_answer[rows]": "3.8: dense, factored",
        "test_overlap_memory.py::test_no_placement_and_no_order_within_the_limit_is_below_the_bound[0.75]": "4.3: what is infeasible; joint bounds without a limit",
        "test_joint_memory.py::test_plans_under_a_limit": "8.5: rows of joint programs, one by one",
        "test_external_engines.py::test_memory_rows_are_stated_when_they_break[ilp]": "11.6: smt",
        "test_unchecked.py::test_every_checker_looks_at_the_time_while_it_works[pipelined]": "1.8: overlapped",
        "test_settings_fit.py::test_nothing_fits_and_the_audit_says_so": "4.4: settings_fit",
        "test_settings_fit.py::test_settings_decide_recomputation_of_the_step": "4.1: settings_words",
        "test_settings_fit.py::test_infinity_is_never_printed_as_a_time[words2]": "3.4: other words",
        "test_recompute.py::test_a_first_plan_that_is_not_proved_ends_nothing": "2.8: auto",
        "test_conditioning.py::test_a_step_whose_gradients_are_zero_but_for_rounding": "3.8: conditioning of parts",
        # programs and rules
        "test_joint.py::test_layers_of_mlp_8192": "9.7: two layers",
        "test_joint_search.py::test_transformers_are_proved[vit-sizes0-cloud-a100:2x2]": "2.8: the other transformers",
        "test_joint_new_rules.py::test_bert_attends_without_storing_scores": "3.1: rules one by one",
        "test_joint_attributes.py::test_other_attributes_compute_the_same_or_are_refused[fuse-attention]": "2.9: other rules",
        "test_joint_attributes.py::test_a_sum_behind_which_something_is_applied_is_never_split[fuse-attention]": "2.2: other rules",
        "test_rules_random.py::test_shipped_preconditions_are_needed_everywhere": "4.3: rule_forced",
        "test_rules_random.py::test_shipped_rules_on_random_shapes": "2.4: mutants that are proved hold",
        "test_rules_recombined.py::test_recombined_rules_are_decided[taso-even-6]": "3.7: other files",
        "test_generate.py::test_a_journal_is_taken_up_again": "3.1: generate",
        # ranks
        "test_reduction_run.py::TestMpi::test_three_levels_uneven_nodes_and_eight_ranks": "7.1: two levels; virtual ranks",
        "test_reduction_run.py::TestMpi::test_every_program[request_2]": "2.9: request_0; virtual ranks",
        "test_reduction_run.py::TestMpi::test_every_program[request_1]": "2.5: request_0; virtual ranks",
        "test_reduction_run.py::TestMpi::test_times_and_an_unfinished_program": "1.5: request_0",
        "test_array_programs.py::test_mpi_ranks_give_the_same[4]": "4.4: two ranks",
        "test_calibrate.py::test_measuring_on_mpi_ranks": "6.4: calibrate_parts measures on ranks",
        "test_mpi.py::test_equal_to_the_reference[bert-tiny-options0-hierarchy0-axes0]": "4.0: conv-stack, mlp-unity",
        "test_mpi.py::test_equal_to_the_reference[mlp-uneven-options2-hierarchy2-axes2]": "3.3: conv-stack, mlp-unity",
        "test_views_training.py::test_four_mpi_ranks_train_on_views": "2.3: views; virtual ranks",
        "test_views_training.py::test_the_command": "2.7: views from the command line",
        "test_expert_parallelism.py::test_a_step_on_four_processes[places]": "1.9: grouped",
        "test_joint_mpi.py::test_rewritten_programs_run[fuse-attention]": "1.5: product-of-parts",
        "test_joint_mpi.py::test_rewritten_programs_run[fuse-epilogue]": "1.4: product-of-parts",
        "test_joint_mpi.py::test_rewritten_programs_run[merge-siblings]": "1.4: product-of-parts",
        "test_optimizers.py::test_plans_are_proved_and_run_like_one_process[muon]": "2.6: other optimizers",
        "test_zoo_ranks.py::test_experts_that_do_not_fit_are_split_and_tokens_travel": "1.7: expert_parallelism",
        "test_training.py::test_found_plans_are_proved_and_run_like_one_process[bert]": "1.6: other models",
        # models
        "test_onnx.py::test_real_graphs_compute_what_the_oracle_computes[shufflenet-2]": "5.6: other graphs, both batches",
        "test_onnx.py::test_real_graphs_have_the_published_work_at_both_batches[densenet121]": "1.7: other graphs",
        "test_graph_equality.py::test_every_mutant_differs_and_the_difference_is_named[moe]": "4.1: bert-tiny",
        "test_verify_entries.py::test_structure_of_the_zoo[inception-v3]": "2.4: other convolutions",
        "test_training.py::test_structure_of_the_zoos_training_steps[transformer]": "2.1: bert",
        "test_zoo.py::test_every_model_builds_with_its_defaults_and_survives_its_json[transformer]": "2.1: other models",
        "test_published.py::test_parameters_are_those_of_the_paper[mixtral-8x7b]": "2.1: other models",
        "test_pipelines.py::test_statistics_over_the_batch_are_refused_by_name[resnet101]": "1.9: another network",
        "test_second_builder.py::test_every_entry_of_small_plans[measured attention]": "6.1: 112 other plans",
        "test_vocabulary.py::test_builder_and_checker_draw_one_line[bert-localhost:6-jax]": "2.5: other machines",
        # machines and prices
        "test_measured_attention.py::test_differences_hold_on_machines_within_the_bars": "4.8: bars",
        "test_collective_times.py::test_the_families_are_judged": "3.3: families one by one",
        "test_check_says.py::test_every_constant_of_a_built_in_machine[dgx-h200]": "3.9: dgx-a100",
        "test_bars_joint.py::test_differences_hold_on_machines_within_the_bars[3]": "2.1: other seeds",
        "test_cost_keys.py::test_every_change_of_an_operator_has_its_own_price[grouped]": "2.1: other operators",
        "test_plan_reductions.py::test_the_program_of_plan_against_all_programs[256-cloud-a100:4x8]": "1.8: smaller machines",
        "test_cuda_source.py::test_row_kernels_equal_the_definition_whatever_the_order_of_threads": "3.0: every kernel compiles",
        # verbs
        "test_api.py::test_with_views": "7.2: kinds in Python",
        "test_amounts.py::test_stdout_is_one_json_object[line4]": "7.1: other lines",
        "test_report.py::test_the_page_of_a_training_step": "5.2: pages of other plans",
        "test_option_pairs.py::test_verbs[check a joint plan]": "4.0: check of other plans",
        "test_option_pairs.py::test_plan[joint]": "3.2: other starts",
        "test_option_pairs.py::test_verbs[explain a plan]": "2.7: explain of other plans",
        "test_bad_command_lines.py::test_the_last_line_does_not_say_proved_where_a_file_was_refused": "2.5: check_says",
        "test_fuzz_loaders.py::test_valid_files_are_accepted_and_cases_are_reproducible": "3.2: what is accepted or refused",
        "test_overlap_plans.py::test_the_command_line_says_and_writes_it": "2.2: portfolio",
        "test_overlap_run.py::test_the_command_line_runs_it": "1.9: ranks in Python",
        "test_export_settings.py::test_the_nearest_is_the_least_of_all_and_proved": "2.0: the verb",
        "test_remarks.py::test_plan_and_explain_say_them": "1.9: remarks one by one",
        # checkers: samples of the same loops
        "test_slack.py::test_the_answer_is_that_of_the_problem_with_rows[some-False]": "1.9: some-True",
        "test_hostile_files.py::test_every_kind_ends_in_its_budget[selection]": "2.0: other kinds",
        "test_mutants_contest.py::test_made_up_problems[removed_leaves]": "4.6: other mutations",
        "test_scale.py::test_branches_to_a_checked_optimum": "1.9: equals enumeration",
        "test_attention_plans.py::test_any_choices_give_the_reference": "1.9: run",
    }
)
"""Test to seconds and what stays."""
