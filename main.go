// Connections of MPTCP lose their SELinux label on kernels such as 6.1, so that who
// took them in a pod cannot use them.
//
//go:debug multipathtcp=0

// Hyperkube is a whole Kubernetes in one file. Which part of it runs is told by
// the first argument, or by the name of the symlink it was called by.
//
// The tour: components/ holds what a person can run, one folder each;
// components/cluster composes them; internal/ holds what they share: api (every
// kind), store (objects in etcd and in memory), client (the one way to the
// API). docs/design.md says why.
package main

import "os"

func main() { os.Exit(run(os.Args)) }
