import dataclasses

from greedy_ensembles.report.evaluation.lines import IN_DOMAIN, OOD, footnotes, lines, marks_of, titles


def as_text(comparison, rows, columns):
    found = lines(rows, columns, marks_of(comparison))
    return [(line.level, line.name, line.count, *line.cells) for line in found]


def test_in_domain_lines(comparison):
    assert as_text(comparison, comparison.in_domain_rows, IN_DOMAIN) == [
        (0, "mnist", "100", "", "", "", "", ""),
        (1, "Deep Ensembles", "2 seeds", "91.00±1.00", "25.00±0.00", "20.00±0.00", "1.10±0.00", "2.00±0.00"),
        (2, "paper", "", "99.43±0.01", "1.65±0.04", "", "", "0.22±0.01"),
        (2, "differs", "", "-8.43", "+23.35", "", "", "+1.78"),
        (1, "mine", "1 seed", "100.00", "25.00", "20.00", "1.10", "2.00"),
    ]


def test_ood_lines(comparison):
    assert as_text(comparison, comparison.ood_rows, OOD) == [
        (0, "uniform", "25,000", "", "", ""),
        (1, "Deep Ensembles", "2 seeds", "0.810±0.010", "0.700±0.000", "0.500±0.000"),
        (2, "paper", "25,000", "0.30±0.22", "0.62±0.10", "0.77±0.18"),
        (2, "differs", "", "+0.51", "+0.08", "-0.27"),
        (1, "mine", "1 seed", "0.900", "0.700", "0.500"),
        (0, "fashion_mnist (a)", "9,000", "", "", ""),
        (1, "Deep Ensembles", "2 seeds", "0.600±0.000", "0.500±0.000", "0.900±0.000"),
        (2, "paper", "10,000", "0.87±0.05", "0.92±0.03", "0.67±0.24"),
        (2, "differs", "", "-0.27", "-0.42", "+0.23"),
        (1, "mine", "1 seed", "0.600", "0.500", "0.900"),
        (0, "dtd", "missing", "", "", ""),
    ]


def test_means_say_over_how_many_sets(comparison):
    names = [line.name for line in lines(comparison.mean_rows, OOD, {}) if line.level == 0]
    assert names == ["mean of 1 synthetic", "mean of 1 of 2 natural", "mean of 2 of 3 sets"]


def test_footnotes(comparison):
    assert footnotes(comparison) == [
        "(a) 50 % of it & no more",
        "missing: dtd (not in the data folder; means are over the sets that are there)",
        "differs: ours less the paper's, whose means are over the same sets",
        "±: standard error of the mean over seeds",
        "trained on a part",
    ]


def test_titles_have_the_networks_that_all_share(comparison):
    assert titles(comparison)[0] == "mnist, in-domain (PreResNet8, 5 members)"
    one, other = comparison.methods
    larger = dataclasses.replace(other.evaluations[0], members=11)
    sizes = dataclasses.replace(comparison, methods=(one, dataclasses.replace(other, evaluations=(larger,))))
    assert titles(sizes)[0] == "mnist, in-domain (PreResNet8)"
    networks = dataclasses.replace(comparison, methods=(one, dataclasses.replace(other, architecture="VGG16BN")))
    assert titles(networks)[0] == "mnist, in-domain (5 members)"


def test_titles_have_the_count_of_in_domain_images(comparison):
    assert titles(comparison)[1] == "OOD sets (positive) against 100 images of mnist, by mutual information"
