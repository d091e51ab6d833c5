// Package vm tests hyperkube on a machine that the tests own: with systemd or OpenRC, cgroup version 2, reboots and power cuts. The
// tests are compiled on the host and run as root inside a virtual machine (`make e2e-vm`), which scripts/vm/run-tests
// controls. Elsewhere they are skipped.
//
// A test that reboots the machine consists of stages. After a stage, the test program exits with the status
// restartRequested; scripts/vm/run-tests then restarts the machine and runs the same test again, which continues with the
// next stage.
package vm
