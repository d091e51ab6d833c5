package upconfig

import (
	"strings"

	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	kubeproxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"hyperkube/components/cluster/kubeadmapi"
	"hyperkube/internal/base/strictyaml"
	"hyperkube/internal/base/tracing"
)

// Kind and APIVersion identify the documents with hyperkube's own settings.
const (
	Kind       = "UpConfiguration"
	APIVersion = "hyperkube.io/v1alpha1"
)

// clusterKind and the other constants are the kinds of kubeadm and of Kubernetes that a file can contain.
const (
	clusterKind   = "ClusterConfiguration"
	kubeletKind   = "KubeletConfiguration"
	proxyKind     = "KubeProxyConfiguration"
	schedulerKind = "KubeSchedulerConfiguration"
	tracingKind   = tracing.Kind
)

// kind is a kind of document that a configuration file of `up` may contain.
type kind struct {
	kind, apiVersion string
	// check adds errors for unknown fields and wrong types of a document to r.
	check func(r *reader, doc *strictyaml.Node)
}

// kinds returns the kinds in the order in which they are printed.
func kinds() []kind {
	return []kind{
		{Kind, APIVersion, (*reader).checkUp},
		{clusterKind, kubeadmapi.Version, checkDocument[kubeadmapi.ClusterConfiguration]},
		{kubeletKind, kubeletv1beta1.SchemeGroupVersion.String(), checkDocument[kubeletv1beta1.KubeletConfiguration]},
		{proxyKind, kubeproxyv1alpha1.SchemeGroupVersion.String(), checkDocument[kubeproxyv1alpha1.KubeProxyConfiguration]},
		{schedulerKind, configv1.SchemeGroupVersion.String(), checkDocument[configv1.KubeSchedulerConfiguration]},
		{tracingKind, tracing.Versions()[0], checkDocument[apiserverv1.TracingConfiguration]},
	}
}

// foreignKinds maps kinds that a user may expect to be supported to the reason why they are not.
var foreignKinds = map[string]string{
	"InitConfiguration":    "it configures `hyperkube init`, which creates a cluster of several machines",
	"JoinConfiguration":    "it configures `hyperkube join`",
	"ResetConfiguration":   "`hyperkube reset` has no configuration",
	"UpgradeConfiguration": "`hyperkube up` upgrades the cluster when it starts with another version",
}

// kindOf returns the kind of a document. If the kind or its apiVersion is not supported, it adds an error and returns
// false.
func (r *reader) kindOf(doc *strictyaml.Node) (kind, bool) {
	name, version := doc.Text("kind"), doc.Text("apiVersion")
	if name == "" && version == "" && r.failK3s(doc) {
		return kind{}, false
	}
	var names []string
	for _, k := range kinds() {
		names = append(names, k.kind)
		if k.kind != name {
			continue
		}
		if k.apiVersion != version {
			hint := ""
			if strings.HasPrefix(version, kubeadmapi.Group+"/") {
				hint = "; `hyperkube config migrate` converts earlier versions"
			}
			r.fail(doc.Position(), "%s: apiVersion %q is not supported: expected %s%s", name, version, k.apiVersion, hint)
			return kind{}, false
		}
		return k, true
	}
	switch reason := foreignKinds[name]; {
	case name == "":
		r.fail(doc.Position(), "the document has no kind: a document of settings of `up` begins with the lines \"apiVersion: %s\" and \"kind: %s\"; other kinds are %s", APIVersion, Kind, strings.Join(names[1:], ", "))
	case reason != "":
		r.fail(doc.Position(), "kind %s is not supported: %s", name, reason)
	default:
		r.fail(doc.Position(), "kind %s is not supported: expected one of %s", name, strings.Join(names, ", "))
	}
	return kind{}, false
}

// checkDocument decodes doc into a T, discards the result, and adds the decoding errors to r.
func checkDocument[T any](r *reader, doc *strictyaml.Node) {
	_, errs := strictyaml.Decode[T](doc)
	r.failDecoding(doc, errs)
}

// failDecoding adds errors of decoding doc, with the reasons why known fields are not supported.
func (r *reader) failDecoding(doc *strictyaml.Node, errs []*strictyaml.Error) {
	for _, err := range errs {
		text := err.Cause.Error()
		if err.Unknown && doc.Text("kind") == clusterKind {
			if reason := kubeadmapi.UnsupportedReason(err.Path); reason != "" {
				text = "not supported: " + reason
			}
		}
		if err.Path != "" {
			text = err.Path + ": " + text
		}
		r.fail(err.Position, "%s: %s", doc.Text("kind"), text)
	}
}
