package manifests

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"
)

// ControlPlane contains the template values for the static pods of a control plane node.
//
// Size: one field for each value that the templates use.
type ControlPlane struct {
	// Image is the reference of the built-in image.
	Image string
	// NodeName is the name of the node and of its etcd member.
	NodeName string
	// Advertise is the node's address. AdvertiseURL is the same address for URLs, with brackets if
	// it is an IPv6 address. Port is the port of the API server.
	Advertise, AdvertiseURL string
	Port                    int
	// Etc is the directory of the components' kubeconfigs. PKI is the directory of keys and
	// certificates. Encryption is the EncryptionConfiguration, in PKI.
	Etc, PKI, Encryption string
	// SignsElsewhere is true if the key of the cluster CA is not in PKI, so this node does not sign
	// certificates.
	SignsElsewhere bool
	// EtcdData is the data directory of etcd. EtcdMembers lists all members of the cluster that
	// this member joins, including itself, as NAME=URL,…. It is empty for the first member.
	EtcdData, EtcdMembers string
	// EtcdShared is true if other members will join, so that the member uses the same raft timing
	// as they do.
	EtcdShared bool
	// PodCIDR and ServiceCIDR are one CIDR, or one of each IP family separated by a comma.
	PodCIDR, ServiceCIDR string
	// AuditPolicy is the file of the audit policy, and AuditLogs the directory of the audit log.
	AuditPolicy, AuditLogs string
	// Domain is the DNS domain of the cluster.
	Domain string
	// ClientCertificates identify the client certificates of components that read their kubeconfig
	// only at startup. A new certificate changes the manifest, which restarts the component. Keys
	// are manifest names. Values must not need quotes in YAML.
	ClientCertificates map[string]string
	// Extra contains additional flags of each component by manifest name. They override default
	// flags with the same name.
	Extra map[string][]Flag
	// Volumes and Envs are additional host volumes and environment variables of each component. A
	// volume overrides the default volume with the same name.
	Volumes map[string][]Volume
	Envs    map[string][]corev1.EnvVar
}

// Volume is a file or directory of the host in a static pod, in the format of kubeadm's
// configuration.
//
// https://kubernetes.io/docs/reference/config-api/kubeadm-config.v1beta4/#kubeadm-k8s-io-v1beta4-HostPathMount
type Volume struct {
	Name      string              `json:"name"`
	HostPath  string              `json:"hostPath"`
	MountPath string              `json:"mountPath"`
	ReadOnly  bool                `json:"readOnly,omitempty"`
	PathType  corev1.HostPathType `json:"pathType,omitempty"`
}

// Validate returns an error if the name is not a DNS label, a path is not absolute or contains
// "..", or the type is unknown.
func (v Volume) Validate() error {
	if problems := validation.IsDNS1123Label(v.Name); len(problems) > 0 {
		return fmt.Errorf("name %q: %s", v.Name, strings.Join(problems, ", "))
	}
	for _, p := range []string{v.HostPath, v.MountPath} {
		if !path.IsAbs(p) || slices.Contains(strings.Split(p, "/"), "..") {
			return fmt.Errorf("%s: %q is not an absolute path or contains \"..\"", v.Name, p)
		}
	}
	types := []corev1.HostPathType{
		corev1.HostPathUnset, corev1.HostPathDirectoryOrCreate, corev1.HostPathDirectory, corev1.HostPathFileOrCreate,
		corev1.HostPathFile, corev1.HostPathSocket, corev1.HostPathCharDev, corev1.HostPathBlockDev,
	}
	if !slices.Contains(types, v.PathType) {
		return fmt.Errorf("%s: invalid pathType %q", v.Name, v.PathType)
	}
	return nil
}

// addTo adds the volume to a pod with one container. It replaces a volume with the same name.
func (v Volume) addTo(pod *corev1.PodSpec) {
	c := &pod.Containers[0]
	pod.Volumes = slices.DeleteFunc(pod.Volumes, func(o corev1.Volume) bool { return o.Name == v.Name })
	c.VolumeMounts = slices.DeleteFunc(c.VolumeMounts, func(o corev1.VolumeMount) bool { return o.Name == v.Name })
	pod.Volumes = append(pod.Volumes, corev1.Volume{
		Name: v.Name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: v.HostPath, Type: &v.PathType}},
	})
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: v.Name, MountPath: v.MountPath, ReadOnly: v.ReadOnly})
}

// Flag is a command line flag of a component, without dashes.
type Flag struct{ Name, Value string }

// Components returns the names of the static pods. Each one depends on those before it.
func Components() []string {
	return []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"}
}

// StaticPod renders the manifest of a static pod. component is one of Components.
func (v ControlPlane) StaticPod(component string) ([]byte, error) {
	objects, err := render(path.Join("controlplane", component+".yaml"), v)
	if err != nil {
		return nil, err
	}
	if len(objects) != 1 {
		return nil, fmt.Errorf("manifest of %s: %d objects", component, len(objects))
	}
	var pod corev1.Pod
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(objects[0].Object, &pod, true); err != nil {
		return nil, fmt.Errorf("manifest of %s: %w", component, err)
	}
	c := &pod.Spec.Containers[0]
	for _, flag := range v.Extra[component] {
		c.Args = setFlag(c.Args, flag)
	}
	for _, volume := range v.Volumes[component] {
		volume.addTo(&pod.Spec)
	}
	c.Env = append(c.Env, v.Envs[component]...)
	if certificate := v.ClientCertificates[component]; certificate != "" {
		if pod.Annotations == nil {
			pod.Annotations = map[string]string{}
		}
		pod.Annotations[clientCertificate] = certificate
	}
	data, err := yaml.Marshal(&pod)
	if err != nil {
		return nil, fmt.Errorf("manifest of %s: %w", component, err)
	}
	return data, nil
}

// clientCertificate is the annotation of a static pod that contains the value of
// ControlPlane.ClientCertificates for the component. The kubelet restarts the pod when it changes.
const clientCertificate = "hyperkube.io/client-certificate"

var clientCertificateLine = regexp.MustCompile(`(?m)^( +` + regexp.QuoteMeta(clientCertificate) + `:).*$`)

// SetClientCertificate returns the manifest of a component with the identifier of a new client
// certificate. Users may have modified the manifest, so everything else is preserved. Only if the
// manifest has no such annotation yet, because it is from an earlier version, comments are lost.
func SetClientCertificate(manifest []byte, certificate string) ([]byte, error) {
	if clientCertificateLine.Match(manifest) {
		return clientCertificateLine.ReplaceAll(manifest, []byte("${1} "+certificate)), nil
	}
	var pod unstructured.Unstructured
	if err := yaml.Unmarshal(manifest, &pod.Object); err != nil {
		return nil, fmt.Errorf("parsing manifest: %w", err)
	}
	if err := unstructured.SetNestedField(pod.Object, certificate, "metadata", "annotations", clientCertificate); err != nil {
		return nil, fmt.Errorf("updating manifest: %w", err)
	}
	return yaml.Marshal(pod.Object)
}

// setFlag returns args with the flag. It replaces the first argument with the same flag and removes
// others, or appends the flag.
func setFlag(args []string, flag Flag) []string {
	text := "--" + flag.Name + "=" + flag.Value
	same := func(arg string) bool {
		name, _, _ := strings.Cut(arg, "=")
		return name == "--"+flag.Name
	}
	i := slices.IndexFunc(args, same)
	if i < 0 {
		return append(args, text)
	}
	args[i] = text
	return append(args[:i+1], slices.DeleteFunc(args[i+1:], same)...)
}
