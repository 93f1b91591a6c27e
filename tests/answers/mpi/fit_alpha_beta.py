"""Answers to `fit_alpha_beta`."""

import math

import numpy as np
import torch

from parlab_staff.answers import Answers

answers = Answers("fit_alpha_beta")


@answers.wrong("bandwidth")
def bytes_a_second(sizes, seconds):
    beta, alpha = np.polyfit(sizes, seconds, 1, w=1 / np.array(seconds))
    return alpha, 1 / beta


@answers.wrong(None, says="it returns")
def a_line_in_logarithms(sizes, seconds):
    slope, intercept = np.polyfit(np.log(sizes), np.log(seconds), 1)
    return np.exp(intercept), slope


@answers.wrong("swapped")
def highest_power_first(sizes, seconds):
    alpha, beta = np.polyfit(sizes, seconds, 1, w=1 / np.array(seconds))
    return alpha, beta


@answers.wrong(None)
def through_the_two_ends(sizes, seconds):
    (small, first), *_, (large, last) = sorted(zip(sizes, seconds, strict=True))
    beta = (last - first) / (large - small)
    return first - small * beta, beta


@answers.wrong(None, says="each size occurs twice")
def one_time_for_each_size(sizes, seconds):
    measured = dict(zip(sizes, seconds, strict=True))
    return answers.reference()(list(measured), list(measured.values()))


@answers.wrong("by_absolute_error")
def plain_least_squares(sizes, seconds):
    beta, alpha = np.polyfit(sizes, seconds, 1)
    return alpha, beta


@answers.wrong(None)
def weighted_by_the_square(sizes, seconds):
    beta, alpha = np.polyfit(sizes, seconds, 1, w=1 / np.array(seconds) ** 2)
    return alpha, beta


@answers.wrong(None, says="nan")
def not_numbers(sizes, seconds):
    return math.nan, math.nan


@answers.wrong(None, says="it returns α")
def alpha_a_third_too_long(sizes, seconds):
    beta, alpha = np.polyfit(sizes, seconds, 1, w=1 / np.array(seconds))
    return alpha * 4 / 3, beta


@answers.wrong(None, says="s per byte")
def beta_a_fifth_too_long(sizes, seconds):
    beta, alpha = np.polyfit(sizes, seconds, 1, w=1 / np.array(seconds))
    return alpha, beta * 6 / 5


@answers.wrong(None)
def a_dictionary(sizes, seconds):
    beta, alpha = np.polyfit(sizes, seconds, 1, w=1 / np.array(seconds))
    return {"alpha": alpha, "beta": beta}


@answers.wrong("argument_changed")
def sorts_what_it_is_given(sizes, seconds):
    sizes.sort()
    seconds.sort()
    beta, alpha = np.polyfit(sizes, seconds, 1, w=1 / np.array(seconds))
    return alpha, beta


@answers.wrong("argument_changed", says="`seconds`")
def inverts_the_times_in_place(sizes, seconds):
    beta, alpha = np.polyfit(sizes, seconds, 1, w=1 / np.array(seconds))
    seconds[:] = [1 / time for time in seconds]
    return alpha, beta


@answers.wrong("returns_none")
def prints(sizes, seconds):
    print(np.polyfit(sizes, seconds, 1, w=1 / np.array(seconds)))


@answers.right
def weighted_polyfit(sizes, seconds):
    beta, alpha = np.polyfit(sizes, seconds, 1, w=1 / np.array(seconds))
    return alpha, beta


@answers.right
def normal_equations_by_hand(sizes, seconds):
    ones = [1 / t for t in seconds]
    scaled = [n / t for n, t in zip(sizes, seconds, strict=True)]
    aa, bb = sum(a * a for a in ones), sum(b * b for b in scaled)
    ab = sum(a * b for a, b in zip(ones, scaled, strict=True))
    determinant = aa * bb - ab * ab
    return (
        (sum(ones) * bb - sum(scaled) * ab) / determinant,
        (sum(scaled) * aa - sum(ones) * ab) / determinant,
    )


@answers.right
def a_list_of_two(sizes, seconds):
    times = np.asarray(seconds)
    columns = np.column_stack([1 / times, np.asarray(sizes) / times])
    return list(np.linalg.pinv(columns) @ np.ones(len(times)))


@answers.right
def with_torch(sizes, seconds):
    times = torch.tensor(seconds, dtype=torch.float64)
    columns = torch.stack([1 / times, torch.tensor(sizes) / times], dim=1)
    alpha, beta = torch.linalg.lstsq(columns, torch.ones_like(times)[:, None]).solution.flatten()
    return alpha.item(), beta.item()


@answers.right
def reweighted_again_and_again(sizes, seconds):
    sizes, times = np.array(sizes, float), np.array(seconds)
    weights = 1 / times
    for _ in range(5):
        beta, alpha = np.polyfit(sizes, times, 1, w=weights)
        weights = 1 / (alpha + sizes * beta)
    return alpha, beta
