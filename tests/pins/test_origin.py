"""The version and the name in the file name of a wheel or an sdist."""

import pytest

from unhang.pins import origin


@pytest.mark.parametrize(
    ("file", "distribution", "version"),
    [
        ("a/megatron_core-0.16.1-cp312-cp312-manylinux_2_24_x86_64.whl", "megatron-core", "0.16.1"),
        ("verl-0.7.1%2Bunhang.1-py3-none-any.whl", "verl", "0.7.1+unhang.1"),
        ("ms_swift-4.3.0.tar.gz", "ms-swift", "4.3.0"),
        ("ms-swift-4.3.0.zip", "ms-swift", "4.3.0"),
        ("verl.whl", "", ""),
        ("verl-main.zip", "", "main"),
        ("third_party/verl", "", ""),
    ],
)
def test_the_name_and_the_version_of_a_file(file: str, distribution: str, version: str) -> None:
    assert (origin.distribution(file), origin.version(file)) == (distribution, version)
