package compose

import (
	"hyperkube/components/apiserver/health"
)

// startHooks are the names of upstream's post-start hook checks. Monitoring systems, load balancers
// and tests query them. The corresponding parts exist here as well but do not start one by one: all
// checks pass when everything has started. They are in upstream's order.
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

// readyChecks returns the health checks with upstream's names. All of them pass when all parts of the server have
// started.
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

// encryptionChecks returns the health checks of the encryption providers, such as KMS plugins.
// There are none without encryption.
func (s *Server) encryptionChecks() (out []health.Check) {
	for _, c := range s.cfg.Encryption.Checks() {
		out = append(out, health.Check{Name: c.Name, Probe: c.Check})
	}
	return out
}
