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

// ControlPlane is what the static pods of a master are filled with.
type ControlPlane struct {
	// Image is the reference of the built-in image.
	Image string
	// NodeName names the master, and its member of etcd.
	NodeName string
	// Advertise is the master's address, AdvertiseURL the same as it stands in
	// URLs: with brackets when it is of IPv6. Port is the API server's.
	Advertise, AdvertiseURL string
	Port                    int
	// Etc is where the kubeconfigs of the components are, PKI where keys and
	// certificates are, Encryption the EncryptionConfiguration, in PKI.
	Etc, PKI, Encryption string
	// SignsElsewhere: the key of the first authority is not in PKI, and nobody here signs
	// what machines ask for.
	SignsElsewhere bool
	// EtcdData is etcd's folder. EtcdMembers are all members of the cluster that
	// this one enters, with itself, as NAME=URL,…; empty: it is the first.
	EtcdData, EtcdMembers string
	// EtcdShared: there are going to be other members, so that its clock ticks
	// as theirs.
	EtcdShared bool
	// PodCIDR and ServiceCIDR are one range or, with a comma, one of each
	// family.
	PodCIDR, ServiceCIDR string
	// Domain is the cluster's DNS domain.
	Domain string
	// ClientCertificates tell those of components that read their kubeconfig when
	// they start from one another, so that a new one starts them again; by the
	// names of the manifests. They are words that YAML needs no quotes for.
	ClientCertificates map[string]string
	// Extra are further flags of each component, by the names of the
	// manifests; they take the place of ours of the same name.
	Extra map[string][]Flag
	// Volumes and Envs are what else each component's pod has of the host and in its
	// environment; a volume takes the place of ours of the same name.
	Volumes map[string][]Volume
	Envs    map[string][]corev1.EnvVar
}

// Volume is a file or folder of the host in a static pod, as kubeadm's configuration has
// it.
//
// https://kubernetes.io/docs/reference/config-api/kubeadm-config.v1beta4/#kubeadm-k8s-io-v1beta4-HostPathMount
type Volume struct {
	Name      string              `json:"name"`
	HostPath  string              `json:"hostPath"`
	MountPath string              `json:"mountPath"`
	ReadOnly  bool                `json:"readOnly,omitempty"`
	PathType  corev1.HostPathType `json:"pathType,omitempty"`
}

// Validate tells why no pod can have the volume.
func (v Volume) Validate() error {
	if problems := validation.IsDNS1123Label(v.Name); len(problems) > 0 {
		return fmt.Errorf("name %q: %s", v.Name, strings.Join(problems, ", "))
	}
	for _, p := range []string{v.HostPath, v.MountPath} {
		if !path.IsAbs(p) || slices.Contains(strings.Split(p, "/"), "..") {
			return fmt.Errorf("%s: %q is no absolute path, or has .. in it", v.Name, p)
		}
	}
	types := []corev1.HostPathType{
		corev1.HostPathUnset, corev1.HostPathDirectoryOrCreate, corev1.HostPathDirectory, corev1.HostPathFileOrCreate,
		corev1.HostPathFile, corev1.HostPathSocket, corev1.HostPathCharDev, corev1.HostPathBlockDev,
	}
	if !slices.Contains(types, v.PathType) {
		return fmt.Errorf("%s: pathType %q is none of hostPath's", v.Name, v.PathType)
	}
	return nil
}

// put adds the volume to a pod of one container, in the place of one of its name.
func (v Volume) put(pod *corev1.PodSpec) {
	c := &pod.Containers[0]
	pod.Volumes = slices.DeleteFunc(pod.Volumes, func(o corev1.Volume) bool { return o.Name == v.Name })
	c.VolumeMounts = slices.DeleteFunc(c.VolumeMounts, func(o corev1.VolumeMount) bool { return o.Name == v.Name })
	pod.Volumes = append(pod.Volumes, corev1.Volume{
		Name: v.Name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: v.HostPath, Type: &v.PathType}},
	})
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: v.Name, MountPath: v.MountPath, ReadOnly: v.ReadOnly})
}

// Flag is one flag of a component, without dashes.
type Flag struct{ Name, Value string }

// Components are the names of the static pods, in the order in which one needs
// the other.
func Components() []string {
	return []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"}
}

// StaticPod renders the manifest of one of Components.
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
		volume.put(&pod.Spec)
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

// clientCertificate is the annotation of ControlPlane.ClientCertificates.
const clientCertificate = "hyperkube.io/client-certificate"

var clientCertificateLine = regexp.MustCompile(`(?m)^( +` + regexp.QuoteMeta(clientCertificate) + `:).*$`)

// SetClientCertificate puts into the manifest of a component, which somebody may have
// changed, what tells its client's certificate from others. Nothing else changes,
// unless it is of a version that had no such thing: comments are lost then.
func SetClientCertificate(manifest []byte, certificate string) ([]byte, error) {
	if clientCertificateLine.Match(manifest) {
		return clientCertificateLine.ReplaceAll(manifest, []byte("${1} "+certificate)), nil
	}
	var pod unstructured.Unstructured
	if err := yaml.Unmarshal(manifest, &pod.Object); err != nil {
		return nil, fmt.Errorf("reading a manifest: %w", err)
	}
	if err := unstructured.SetNestedField(pod.Object, certificate, "metadata", "annotations", clientCertificate); err != nil {
		return nil, fmt.Errorf("changing a manifest: %w", err)
	}
	return yaml.Marshal(pod.Object)
}

// setFlag puts a flag in the place of those of its name, or at the end.
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
