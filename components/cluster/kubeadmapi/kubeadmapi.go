// Package kubeadmapi contains the parts of kubeadm's configuration API that `init`, `join` and `up` share.
//
// https://kubernetes.io/docs/reference/config-api/kubeadm-config.v1beta4/
package kubeadmapi

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiversion "k8s.io/apimachinery/pkg/util/version"

	"hyperkube/internal/base/version"
	"hyperkube/manifests"
)

// Group is the API group, and Version the supported apiVersion, which contains the group.
const (
	Group   = "kubeadm.k8s.io"
	Version = Group + "/v1beta4"
)

type (
	// Argument is a flag of a component, without dashes.
	Argument struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}

	// ClusterConfiguration contains the supported fields of the kind.
	ClusterConfiguration struct {
		metav1.TypeMeta      `json:",inline"`
		ClusterName          string `json:"clusterName,omitempty"`
		KubernetesVersion    string `json:"kubernetesVersion,omitempty"`
		ControlPlaneEndpoint string `json:"controlPlaneEndpoint,omitempty"`
		Networking           struct {
			ServiceSubnet string `json:"serviceSubnet,omitempty"`
			PodSubnet     string `json:"podSubnet,omitempty"`
			DNSDomain     string `json:"dnsDomain,omitempty"`
		} `json:"networking,omitempty"`
		APIServer struct {
			MountingComponent `json:",inline"`
			CertSANs          []string `json:"certSANs,omitempty"`
		} `json:"apiServer,omitempty"`
		ControllerManager MountingComponent `json:"controllerManager,omitempty"`
		Scheduler         MountingComponent `json:"scheduler,omitempty"`
		Etcd              struct {
			Local *Component `json:"local,omitempty"`
		} `json:"etcd,omitempty"`
	}

	// Component configures a component.
	Component struct {
		ExtraArgs []Argument      `json:"extraArgs,omitempty"`
		ExtraEnvs []corev1.EnvVar `json:"extraEnvs,omitempty"`
	}

	// MountingComponent is a component that can have extra volumes. This is every component except
	// etcd.
	MountingComponent struct {
		Component    `json:",inline"`
		ExtraVolumes []manifests.Volume `json:"extraVolumes,omitempty"`
	}
)

// unsupportedFields maps kubeadm's fields that are not supported to the reason.
var unsupportedFields = map[string]string{
	"imageRepository":                  "no images are pulled, because all components run from the built-in image",
	"featureGates":                     "they are feature gates of kubeadm itself; set those of a component with feature-gates in its extraArgs",
	"dns":                              "DNS is built in",
	"proxy":                            "the service proxy is part of the node",
	"certificatesDir":                  "certificates are always in the directory pki beside the kubeconfigs",
	"encryptionAlgorithm":              "new keys are ECDSA P-256; existing keys of any algorithm are used",
	"etcd.external":                    "each control plane node runs an etcd member",
	"etcd.local.dataDir":               "etcd data is always below /var/lib/hyperkube",
	"nodeRegistration.criSocket":       "the container runtime is built in",
	"nodeRegistration.imagePullPolicy": "no images are pulled",
	"nodeRegistration.imagePullSerial": "no images are pulled",
}

// UnsupportedReason returns the reason why the field of kubeadm's kinds at path, for example etcd.external, is not
// supported. It returns "" if the field is supported or kubeadm has no such field.
func UnsupportedReason(path string) string { return unsupportedFields[path] }

// CheckVersion returns an error for a Kubernetes version of another minor version than this program. It accepts "", and
// names that are not versions, which are release channels such as stable-1.
func CheckVersion(requested string) error {
	own, parsed := apiversion.MustParseGeneric(version.Get().GitVersion), (*apiversion.Version)(nil)
	if requested != "" {
		parsed, _ = apiversion.ParseGeneric(requested)
	}
	if parsed != nil && (parsed.Major() != own.Major() || parsed.Minor() != own.Minor()) {
		return fmt.Errorf("%s: this program is Kubernetes %s and supports no other minor version", requested, version.Get().GitVersion)
	}
	return nil
}

// SplitList splits a comma-separated list. It returns nil for "".
func SplitList(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}
