package catalog

import (
	"slices"
	"strings"
	"testing"
)

// shortNames maps resource.group to the short names that kubectl accepts.
var shortNames = map[string]string{
	"componentstatuses": "cs", "configmaps": "cm", "endpoints": "ep", "events": "ev", "limitranges": "limits",
	"namespaces": "ns", "nodes": "no", "persistentvolumeclaims": "pvc", "persistentvolumes": "pv", "pods": "po",
	"replicationcontrollers": "rc", "resourcequotas": "quota", "serviceaccounts": "sa", "services": "svc",
	"customresourcedefinitions.apiextensions.k8s.io": "crd crds",
	"daemonsets.apps":                                "ds",
	"deployments.apps":                               "deploy",
	"replicasets.apps":                               "rs",
	"statefulsets.apps":                              "sts",
	"horizontalpodautoscalers.autoscaling":           "hpa",
	"cronjobs.batch":                                 "cj",
	"certificatesigningrequests.certificates.k8s.io": "csr",
	"events.events.k8s.io":                           "ev",
	"ingresses.networking.k8s.io":                    "ing",
	"ipaddresses.networking.k8s.io":                  "ip",
	"networkpolicies.networking.k8s.io":              "netpol",
	"poddisruptionbudgets.policy":                    "pdb",
	"priorityclasses.scheduling.k8s.io":              "pc",
	"storageclasses.storage.k8s.io":                  "sc",
	"volumeattributesclasses.storage.k8s.io":         "vac",
}

// categories maps categories, which kubectl accepts for several resources, to the resources.
var categories = map[string][]string{
	"all": {
		"cronjobs.batch", "daemonsets.apps", "deployments.apps", "horizontalpodautoscalers.autoscaling", "jobs.batch",
		"pods", "replicasets.apps", "replicationcontrollers", "services", "statefulsets.apps",
	},
	"api-extensions": {
		"apiservices.apiregistration.k8s.io", "customresourcedefinitions.apiextensions.k8s.io",
		"mutatingadmissionpolicies.admissionregistration.k8s.io", "mutatingadmissionpolicybindings.admissionregistration.k8s.io",
		"mutatingwebhookconfigurations.admissionregistration.k8s.io", "validatingadmissionpolicies.admissionregistration.k8s.io",
		"validatingadmissionpolicybindings.admissionregistration.k8s.io", "validatingwebhookconfigurations.admissionregistration.k8s.io",
	},
}

// TestNames checks the short names and categories of each kind.
func TestNames(t *testing.T) {
	found := map[string]bool{}
	for _, r := range Resources() {
		name := r.GroupResource().String()
		found[name] = true
		if got := strings.Join(r.ShortNames, " "); got != shortNames[name] {
			t.Errorf("%s: short names %q, want %q", name, got, shortNames[name])
		}
		if r.Singular != strings.ToLower(r.Kind) {
			t.Errorf("%s: singular %q", name, r.Singular)
		}
		var in []string
		for category, all := range categories {
			if slices.Contains(all, name) {
				in = append(in, category)
			}
		}
		if !slices.Equal(r.Categories, in) {
			t.Errorf("%s: categories %q, want %q", name, r.Categories, in)
		}
	}
	for _, name := range slices.Concat(categories["all"], categories["api-extensions"]) {
		if !found[name] {
			t.Errorf("there are no %s", name)
		}
	}
	for name := range shortNames {
		if !found[name] {
			t.Errorf("there are no %s", name)
		}
	}
}
