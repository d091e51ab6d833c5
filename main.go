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
