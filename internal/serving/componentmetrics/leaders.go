package componentmetrics

import "github.com/prometheus/client_golang/prometheus"

// Leaders collects the metric leader_election_master_status of this process. It is safe for
// concurrent use.
type Leaders struct{ status *prometheus.GaugeVec }

// NewLeaders creates a Leaders that contains no lease until SetLeader is called.
func NewLeaders() *Leaders {
	return &Leaders{prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "leader_election_master_status",
		Help: "[ALPHA] Gauge of if the reporting system is master of the relevant lease, 0 indicates backup, 1 indicates master. 'name' is the string used to identify the lease. Please make sure to group by name.",
	}, []string{"name"})}
}

// Describe implements prometheus.Collector. It describes the metric of leader election.
func (l *Leaders) Describe(ch chan<- *prometheus.Desc) { l.status.Describe(ch) }

// Collect implements prometheus.Collector. It sends whether this process is the leader, for each
// lease.
func (l *Leaders) Collect(ch chan<- prometheus.Metric) { l.status.Collect(ch) }

// SetLeader records whether this process holds the lease with the name.
func (l *Leaders) SetLeader(lease string, yes bool) {
	value := 0.0
	if yes {
		value = 1
	}
	l.status.WithLabelValues(lease).Set(value)
}
