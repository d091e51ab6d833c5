package measure

import "github.com/prometheus/client_golang/prometheus"

// Leaders tells who leads: an instance of it goes with each election.
type Leaders struct{ status *prometheus.GaugeVec }

// NewLeaders makes Leaders that knows of no election.
func NewLeaders() *Leaders {
	return &Leaders{prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "leader_election_master_status",
		Help: "[ALPHA] Gauge of if the reporting system is master of the relevant lease, 0 indicates backup, 1 indicates master. 'name' is the string used to identify the lease. Please make sure to group by name.",
	}, []string{"name"})}
}

// Describe as prometheus.Collector.
func (l *Leaders) Describe(ch chan<- *prometheus.Desc) { l.status.Describe(ch) }

// Collect as prometheus.Collector.
func (l *Leaders) Collect(ch chan<- prometheus.Metric) { l.status.Collect(ch) }

// Lead says whether this process holds the lease of that name.
func (l *Leaders) Lead(lease string, yes bool) {
	value := 0.0
	if yes {
		value = 1
	}
	l.status.WithLabelValues(lease).Set(value)
}
