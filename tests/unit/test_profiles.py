"""`parlab profile` writes profiles. (test_slurm and test_ssh start ranks with them.)"""

from pathlib import Path
from typing import Any

import pytest
from traitlets.config.loader import PyFileConfigLoader

from parlab.profiles.slurm import Job
from parlab.profiles.ssh import SshRanks
from parlab.profiles.writing import ranks_on, write_slurm, write_ssh


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    return tmp_path


def settings(file: Path) -> Any:
    return PyFileConfigLoader(file.name, str(file.parent)).load_config()


def test_options_are_in_the_batch_script(home: Path) -> None:
    file = write_slurm(
        "gpus", partition="gpu", account="course", time="1-12", nodes=2, ranks_per_node=4,
        cpus_per_rank=6, gpus_per_node=4, interface="ib0", sbatch=["--constraint=a100&{80}"],
    )  # fmt: skip
    assert file == home / "profile_gpus" / "ipcluster_config.py"
    launcher = settings(file).SlurmRanks
    script = launcher.batch_template.splitlines()
    assert script[:5] == [
        "#!/bin/bash",
        "#SBATCH --job-name=parlab",
        "#SBATCH --export=ALL",
        "#SBATCH --output={output_file}",
        "#SBATCH --ntasks={n}",
    ]
    assert set(script[5:-1]) == {
        "#SBATCH --partition=gpu",
        "#SBATCH --account=course",
        "#SBATCH --time=1-12",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=4",
        "#SBATCH --cpus-per-task=6",
        "#SBATCH --gpus-per-node=4",
        "#SBATCH --constraint=a100&{{80}}",  # ipyparallel replaces text in single braces
    }
    assert script[-1] == "exec {mpiexec} -n {n} {program_and_args}"
    assert launcher.environment["OMPI_MCA_btl_tcp_if_include"] == "ib0"


def test_a_profile_is_overwritten_only_when_asked() -> None:
    file = write_slurm("slurm")
    before = file.read_text()
    with pytest.raises(ValueError, match="exists already"):
        write_slurm("slurm", partition="other")
    assert file.read_text() == before
    write_slurm("slurm", partition="other", force=True)
    assert "--partition=other" in file.read_text()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"name": "../slurm"}, "--name ../slurm: must begin"),
        ({"name": ""}, "--name : must begin"),
        ({"time": "two hours"}, "--time two hours: Slurm takes minutes"),
        ({"partition": "gpu long"}, "--partition gpu long: one word"),
        ({"account": "me\n#SBATCH --nodes=99"}, "one word"),
        ({"interface": "eth0;reboot"}, "--interface eth0;reboot: the name of one"),
        ({"sbatch": ["qos=long"]}, "--sbatch qos=long: must be an option of sbatch"),
        ({"sbatch": ["--comment=a\nb"]}, "one line"),
        ({"sbatch": ['--comment="""']}, "one line"),
    ],
)
def test_invalid_options_are_refused_and_nothing_is_written(
    given: dict[str, Any], expected: str, home: Path
) -> None:
    with pytest.raises(ValueError) as refused:
        write_slurm(**{"name": "slurm"} | given)
    assert expected in str(refused.value)
    assert list(home.iterdir()) == []


def test_hosts_are_in_the_profile_as_given() -> None:
    hosts = ["gpu01:4", "10.0.0.2:2"]
    file = write_ssh("ssh", hosts, ssh_command="ssh -p '2222'")
    assert settings(file).SshRanks.hosts == hosts
    assert settings(file).SshRanks.ssh_command == "ssh -p '2222'"
    assert ranks_on(hosts) == 6


@pytest.mark.parametrize("host", ["gpu01", "gpu01:0", "gpu01:x", "-oProxyCommand=x:1", "a b:1"])
def test_a_host_without_its_ranks_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match="a machine and its number of ranks"):
        write_ssh("ssh", ["gpu02:1", host])


def test_a_repeated_host_is_refused() -> None:
    with pytest.raises(ValueError, match="gpu01 is listed twice"):
        write_ssh("ssh", ["gpu01:1", "gpu01:2"])


@pytest.mark.parametrize(
    ("state", "waits", "is_over"),
    [
        ("PENDING", True, False),
        ("CONFIGURING", True, False),
        ("RUNNING", False, False),
        ("COMPLETING", False, True),
        ("CANCELLED", False, True),
    ],
)
def test_states_of_a_slurm_job(state: str, waits: bool, is_over: bool) -> None:
    job = Job("7", state, "")
    assert (job.waits, job.is_over) == (waits, is_over)


def test_ranks_on_other_machines_get_the_variables_of_the_kernel() -> None:
    ranks = SshRanks(hosts=["a:2"], environment={"PARLAB_CHANNEL": "1"})
    ranks.n = 2
    words = ranks.find_args()
    assert words[words.index("PARLAB_CHANNEL") - 1] == "-x" and "a:2" in words
