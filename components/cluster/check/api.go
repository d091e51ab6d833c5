package check

import (
	"context"
	"strings"
)

// apiChecks returns the checks of the processes and of the API server.
func apiChecks() []check { return []check{{"processes", checkProcesses}, {"api-server", checkAPI}} }

// APIStatus is what the API server reports about itself, the nodes, and the addresses of its Service and of cluster
// DNS.
type APIStatus struct {
	// Failed are the failed checks of /readyz.
	Failed []string
	// NotReady describes the nodes that are not ready, NAME: REASON.
	NotReady []string
	// DNS is the address of the built-in DNS; "" if it is disabled.
	DNS string
	// Service is the address of the Service of the API server; "" if unknown.
	Service string
}

// checkProcesses checks that the main process and the container runtime either both run or are both stopped, and that
// the cluster does not wait for disk space. It does not apply to a machine without a cluster, or whose cluster is
// stopped.
func checkProcesses(_ context.Context, m *Machine, o *outcome) {
	switch c := &m.Cluster; {
	case !c.Exists:
		o.skip("the machine has no cluster")
	case c.MainPID == 0 && c.RuntimePID != 0:
		o.warnf("run `"+c.Start+"`", "the cluster is stopped, although its pods still run")
	case c.MainPID != 0 && c.RuntimePID == 0:
		o.errorf("read the end of "+m.Layout.Log("runtime")+", then run `hyperkube stop` and `"+c.Start+"`", "the container runtime does not run, so no container can start or stop")
	case c.MainPID == 0:
		o.skip("the cluster is stopped; `" + c.Start + "` starts it")
	}
	if reason := m.read(m.Layout.Stopped()); reason != "" && m.Cluster.MainPID != 0 {
		o.errorf("free disk space; the cluster then starts again within 30 seconds", "the cluster has stopped and waits for disk space: %s", reason)
	}
}

// checkAPI checks that the API server and the nodes are ready. It does not apply while the cluster does not run.
func checkAPI(ctx context.Context, m *Machine, o *outcome) {
	if !m.Cluster.running() {
		o.skip("the cluster does not run")
		return
	}
	status, err := m.Probes.API(ctx)
	if err != nil {
		o.errorf("see why with `hyperkube status`, which also prints where the log is", "the API server does not answer: %v", err)
		return
	}
	if len(status.Failed) > 0 {
		o.errorf("see why with `hyperkube kubectl get --raw '/readyz?verbose'`", "the API server is not ready: %s", strings.Join(status.Failed, ", "))
	}
	for _, node := range status.NotReady {
		name, reason, _ := strings.Cut(node, ": ")
		o.errorf("see its conditions and events with `hyperkube kubectl describe node "+name+"`", "node %s is not ready, so no pods start there: %s", name, reason)
	}
}
