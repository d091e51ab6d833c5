package compose

import (
	"hyperkube/components/apiserver/health"
)

// startHooks are the names by which upstream tells, one by one, of what must have
// been started. Monitors, load balancers and tests ask for them. Each of these is
// begun here too, though not each by itself: all are well when all of them are. They
// are in upstream's order.
var startHooks = []string{
	"start-apiserver-admission-initializer",
	"generic-apiserver-start-informers",
	"priority-and-fairness-config-consumer",
	"priority-and-fairness-filter",
	"storage-object-count-tracker-hook",
	"start-apiextensions-informers",
	"start-apiextensions-controllers",
	"crd-informer-synced",
	"start-system-namespaces-controller",
	"start-cluster-authentication-info-controller",
	"start-kube-apiserver-identity-lease-controller",
	"start-kube-apiserver-identity-lease-garbage-collector",
	"storage-readiness",
	"start-legacy-token-tracking-controller",
	"start-service-ip-repair-controllers",
	"rbac/bootstrap-roles",
	"scheduling/bootstrap-system-priority-classes",
	"priority-and-fairness-config-producer",
	"bootstrap-controller",
	"start-kubernetes-service-cidr-controller",
	"start-kube-aggregator-informers",
	"apiservice-status-local-available-controller",
	"apiservice-status-remote-available-controller",
	"apiservice-registration-controller",
	"apiservice-discovery-controller",
	"kube-apiserver-autoregistration",
	"apiservice-openapi-controller",
	"apiservice-openapiv3-controller",
}

// readyChecks tell whether all has begun.
//
// https://kubernetes.io/docs/reference/using-api/health-checks/
func (s *Server) readyChecks() []health.Check {
	var checks []health.Check
	for _, name := range startHooks {
		checks = append(checks, health.Closed("poststarthook/"+name, s.ready))
		if name == "kube-apiserver-autoregistration" {
			checks = append(checks, health.Closed("autoregister-completion", s.ready))
		}
	}
	return checks
}

// workChecks tell whether what is encrypted can be read.
func (s *Server) workChecks() (out []health.Check) {
	for _, c := range s.cfg.Encryption.Checks() {
		out = append(out, health.Check{Name: c.Name, Look: c.Look})
	}
	return out
}
