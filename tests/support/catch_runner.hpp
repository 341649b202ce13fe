#pragma once

/// Runs the test cases that the arguments select, with Catch2 2 or 3; returns the exit status.
int run_catch(int argc, char** argv);
