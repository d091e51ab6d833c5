// Package kubelet runs the pods that are bound to this node, through any container runtime that
// serves CRI v1, and reports their status and the node's to the API server.
//
// This package only composes the parts: compose creates them in the order of their dependencies, and Run
// starts and stops them. Imports go one way, which imports_test.go checks with the reason of each rule:
//
//   - config has the flags, the KubeletConfiguration file, the defaults and their validation.
//   - server serves logs, exec, statistics and metrics, and the APIs on sockets of the node.
//   - node manages the node as a whole: its status and lease, admission of pods, eviction, shutdown, cgroups,
//     statistics, certificates and housekeeping.
//   - pod/podsource receives pods from the API server and from manifests, and pod/pods runs them with one
//     goroutine per pod. It uses the packages that each provide one thing that a pod needs, such as env,
//     dnsconf, volume, images, probe and podlogs.
//   - resources allocates devices, CPUs and memory to containers, aligned by NUMA node.
//   - pod/podstate computes what happens to a pod, without I/O.
//   - cri, pluginwatch, grpcsocket and telemetry are used by all of them.
package kubelet
