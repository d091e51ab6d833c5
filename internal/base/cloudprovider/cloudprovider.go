// Package cloudprovider has the setting --cloud-provider, which components of nodes and control planes share.
//
// https://kubernetes.io/docs/tasks/administer-cluster/running-cloud-controller/
package cloudprovider

import (
	"fmt"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	cloudproviderapi "k8s.io/cloud-provider/api"
)

// Setting is the value of --cloud-provider. It is empty for clusters without a cloud provider, or External. It
// implements pflag.Value.
type Setting string

// External means that a cloud controller manager initializes the nodes: it sets their addresses and provider IDs, and
// removes the taint with which kubelets register them. It also deletes Nodes whose machines do not exist anymore,
// and assigns addresses to Services of type LoadBalancer.
const External Setting = "external"

// IsExternal reports whether a cloud controller manager initializes the nodes.
func (s *Setting) IsExternal() bool { return *s == External }

// String implements pflag.Value.
func (s *Setting) String() string { return string(*s) }

// Type implements pflag.Value.
func (s *Setting) Type() string { return "string" }

// Set implements pflag.Value. It returns an error for the names of the providers that Kubernetes had built in until
// v1.30, and for all other values except External and the empty string.
func (s *Setting) Set(text string) error {
	if text != "" && Setting(text) != External {
		return fmt.Errorf("unsupported value %q: supported values: %q, or empty for no cloud provider; other providers are part of their cloud controller managers", text, External)
	}
	*s = Setting(text)
	return nil
}

// Register adds the flag --cloud-provider, which sets s.
func Register(flags *pflag.FlagSet, s *Setting, usage string) { flags.Var(s, "cloud-provider", usage) }

// Taint returns the taint with which a kubelet registers its Node with an external cloud provider. Only pods that
// tolerate it run on the node until the cloud controller manager has initialized the node.
func Taint() corev1.Taint {
	return corev1.Taint{Key: cloudproviderapi.TaintExternalCloudProvider, Value: "true", Effect: corev1.TaintEffectNoSchedule}
}

// IsUninitialized reports whether node has the taint of Taint, so a cloud controller manager must still initialize it.
func IsUninitialized(node *corev1.Node) bool {
	for i := range node.Spec.Taints {
		if node.Spec.Taints[i].Key == cloudproviderapi.TaintExternalCloudProvider {
			return true
		}
	}
	return false
}
