// MPTCP connections lose their SELinux label on kernels such as 6.1, so that a server that accepts
// them in a pod cannot use them.
//
//go:debug multipathtcp=0

// Hyperkube is a complete Kubernetes in one program. Its first argument, or the name of the symlink
// through which it is called, selects the component or command to run; see dispatch.go.
//
// # A guided tour
//
// Start with `hyperkube up`: components/cluster/up/run.go starts etcd, the API server, the
// controllers, the scheduler and the node, in this order, in one process.
//
// A request takes this way: components/apiserver accepts it (filters/), authenticates and authorizes
// it (authn/, authz/), decodes it and calls admission (rest/, admission/), and writes the object
// through internal/store, which keeps all objects in etcd and in memory. The properties of each kind
// (defaults, validation, columns) are in internal/api, one file for each kind.
//
// All other components are clients of the API (internal/client). In the process of the API server
// they share its objects in memory: components/controllers has one directory for each controller,
// components/scheduler assigns pods to nodes.
//
// On the node, components/kubelet runs the pods: pod/podstate decides what to do next, as a pure
// function; pod/pods executes the decision through CRI. components/runtime is the container runtime,
// a separate process and program, so that containers survive all other processes.
// components/proxy and components/network connect pods; internal/pod/podnet creates the network
// interface of a pod. components/dns, metrics and hello run as pods of the built-in image.
//
// internal/ contains what components share: api (kinds), store (objects), client (API clients), host
// (changes to the machine), serving (HTTP servers), credentials (keys and tokens), pod (facts and
// network of pods), base (lifecycle, logging, configuration) and testing (fakes and fixtures).
// internal/architecture tests which package may import which.
//
// docs/development/design.md explains the decisions, docs/glossary.md the terms.
package main

import "os"

func main() { os.Exit(run(os.Args)) }
