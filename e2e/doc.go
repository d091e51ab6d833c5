// Package e2e tests running clusters on this kernel: real containers, real
// packets, real kills. It needs root and the program to test in
// $HYPERKUBE_E2E; without that it tests nothing. What it changes on the host is
// taken back, and that is tested, too; also when the tests are killed: a guard
// waits for their end, and where that is killed as well, the next run begins by
// taking back what is left.
//
// With $HYPERKUBE_E2E_APART_ONLY set the cluster that most tests share is not
// started, and only those run that have one of their own elsewhere: they can be
// worked on while the usual places of the machine are in use.
package e2e
