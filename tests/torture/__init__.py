"""Tests of reliability by many drawn cases: `make torture`, and a short form in the test run."""
