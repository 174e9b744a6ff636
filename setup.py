"""Builds the C part: one abi3 extension for CPython 3.11 and later."""

from setuptools import setup

setup(
    cffi_modules=["src/mirrorq/_native/build.py:ffibuilder"],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
