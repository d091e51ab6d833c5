// Package e2e tests running clusters on this kernel: real containers, real packets, real kills. It
// needs root and the program to test in $HYPERKUBE_E2E; without it, all tests are skipped. The
// tests check that all changes of the host are reverted. If the tests are killed, a guard process
// reverts the changes. If the guard is killed as well, the next run reverts them first.
//
// If $HYPERKUBE_E2E_APART_ONLY is set, the cluster that most tests share is not started, and only
// tests with a separate cluster run. These do not use the default paths and ports, so that they can
// run while another cluster uses them.
package e2e
