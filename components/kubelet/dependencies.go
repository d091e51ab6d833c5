package kubelet

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"hyperkube/internal/client"
	"hyperkube/internal/host/hostjournal"
	"hyperkube/internal/serving/zpages"
)

// Policies is the component of the node that enforces NetworkPolicies for pods. Its methods must be safe for
// concurrent use.
type Policies interface {
	// Expect returns nil when the network policies of a pod are in force for its addresses. If it returns an
	// error, the pod's containers are not started.
	Expect(ctx context.Context, pod *v1.Pod, ips []string) error
	// Forget is called when no process of the pod runs any more.
	Forget(pod types.UID)
}

// Informers are shared informers, which may cover more objects than those of this node. Their owner
// runs them. If one is nil, the kubelet runs its own informer, restricted to its pods and its Node.
type Informers struct {
	Pods, Services, Nodes cache.SharedInformer
}

// Dependencies are the services and objects of the process that the kubelet uses. All may be nil; the comment of
// each field says what the kubelet does without it.
type Dependencies struct {
	// Clients are the API clients, authenticated as system:node:NodeName. Nil for a kubelet that
	// runs only static pods.
	Clients *client.Clients
	// Informers are used instead of informers of the kubelet.
	Informers Informers
	// Policies enforces network policies. If it is nil, pods do not wait for network policies.
	Policies Policies
	// ServicesReady is closed when pods can reach services. Until then the node is not ready,
	// because a connection whose first packet precedes the service rules stays broken. If it is
	// nil, the kubelet does not wait.
	ServicesReady <-chan struct{}
	// Metrics are exported together with the kubelet's own. Metric names must be unique.
	Metrics []prometheus.Collector
	// Flags are the kubelet's command line flags, shown by /flagz.
	Flags zpages.Flags
	// Level is the log level that /debug/flags/v changes. If it is nil, the level cannot be
	// changed.
	Level *slog.LevelVar
	// Journal records changes to the host. If it is nil, they are not recorded.
	Journal *hostjournal.Journal
	// Log is the kubelet's logger. The default is slog.Default().
	Log *slog.Logger
}
