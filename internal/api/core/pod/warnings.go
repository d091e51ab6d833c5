package pod

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api/core/volume"
	"hyperkube/internal/api/validate"
)

// warner collects the warnings that a client gets for a pod or pod template, about deprecated
// fields and possible mistakes.
type warner struct {
	spec *corev1.PodSpec
	meta *metav1.ObjectMeta
	// path is the path of a template; nil for a pod.
	path *field.Path
	list []string
}

// add adds a warning about the field at a path.
func (w *warner) add(at *field.Path, format string, args ...any) {
	w.list = append(w.list, at.String()+": "+fmt.Sprintf(format, args...))
}

// specWarnings returns the warnings for a pod or, if path is not nil, for the pod template at path.
func specWarnings(spec *corev1.PodSpec, meta *metav1.ObjectMeta, path *field.Path) []string {
	w := &warner{spec: spec, meta: meta, path: path}
	at := path.Child("spec")
	w.scheduling(at)
	w.annotations(path.Child("metadata", "annotations"))
	for i := range spec.Volumes {
		w.volume(&spec.Volumes[i].VolumeSource, at.Child("volumes").Index(i))
	}
	w.overlaps()
	w.duplicates(at)
	w.fractions(spec.Overhead, at.Child("overhead"))
	eachContainer(spec, at, func(ctr *corev1.Container, at *field.Path) {
		w.profiles(ctr, path.Child("metadata", "annotations"))
		w.fractions(ctr.Resources.Limits, at.Child("resources", "limits"))
		w.fractions(ctr.Resources.Requests, at.Child("resources", "requests"))
		w.env(ctr.Env, at.Child("env"))
	})
	w.ports(at)
	if g := spec.TerminationGracePeriodSeconds; g != nil && *g < 0 {
		w.add(at.Child("terminationGracePeriodSeconds"), "must be >= 0; negative values are invalid and will be treated as 1")
	}
	if spec.DNSConfig != nil {
		for i, ip := range spec.DNSConfig.Nameservers {
			w.list = append(w.list, validate.IPWarnings(at.Child("dnsConfig", "nameservers").Index(i), ip)...)
		}
	}
	for i, alias := range spec.HostAliases {
		w.list = append(w.list, validate.IPWarnings(at.Child("hostAliases").Index(i).Child("ip"), alias.IP)...)
	}
	return w.list
}

const noSelector = "a null labelSelector results in matching no pod"

// scheduling warns about deprecated node labels, and about selectors that match nothing.
func (w *warner) scheduling(at *field.Path) {
	for _, key := range slices.Sorted(maps.Keys(w.spec.NodeSelector)) {
		if msg := validate.DeprecatedNodeLabel(key); msg != "" {
			w.add(at.Child("nodeSelector").Key(key), "%s", msg)
		}
	}
	for i, t := range w.spec.TopologySpreadConstraints {
		p := at.Child("topologySpreadConstraints").Index(i)
		if msg := validate.DeprecatedNodeLabel(t.TopologyKey); msg != "" {
			w.add(p.Child("topologyKey"), "%s is %s", t.TopologyKey, msg)
		}
		if t.LabelSelector == nil {
			w.add(p.Child("labelSelector"), noSelector)
		}
	}
	a := w.spec.Affinity
	if a == nil {
		return
	}
	at = at.Child("affinity")
	if n := a.NodeAffinity; n != nil {
		p := at.Child("nodeAffinity")
		if n.RequiredDuringSchedulingIgnoredDuringExecution != nil {
			for i := range n.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
				w.list = append(w.list, validate.NodeSelectorTermWarnings(p.Child(required, "nodeSelectorTerms").Index(i),
					&n.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[i], false)...)
			}
		}
		for i := range n.PreferredDuringSchedulingIgnoredDuringExecution {
			w.list = append(w.list, validate.NodeSelectorTermWarnings(p.Child(preferred).Index(i).Child("preference"),
				&n.PreferredDuringSchedulingIgnoredDuringExecution[i].Preference, true)...)
		}
	}
	if p := a.PodAffinity; p != nil {
		w.podAffinity(p.RequiredDuringSchedulingIgnoredDuringExecution, p.PreferredDuringSchedulingIgnoredDuringExecution, at.Child("podAffinity"))
	}
	if p := a.PodAntiAffinity; p != nil {
		w.podAffinity(p.RequiredDuringSchedulingIgnoredDuringExecution, p.PreferredDuringSchedulingIgnoredDuringExecution, at.Child("podAntiAffinity"))
	}
}

// podAffinity warns about affinity terms without a label selector, which match no pods.
func (w *warner) podAffinity(must []corev1.PodAffinityTerm, should []corev1.WeightedPodAffinityTerm, at *field.Path) {
	for i := range must {
		if must[i].LabelSelector == nil {
			w.add(at.Child(required).Index(i).Child("labelSelector"), noSelector)
		}
	}
	for i := range should {
		if should[i].PodAffinityTerm.LabelSelector == nil {
			w.add(at.Child(preferred).Index(i).Child("podAffinityTerm", "labelSelector"), noSelector)
		}
	}
}

// annotations warns about annotations that have no effect anymore.
func (w *warner) annotations(at *field.Path) {
	if len(w.meta.Annotations) == 0 {
		return
	}
	for _, old := range [...]struct{ key, message string }{
		{"scheduler.alpha.kubernetes.io/critical-pod", `non-functional in v1.16+; use the "priorityClassName" field instead`},
		{"security.alpha.kubernetes.io/sysctls", `non-functional in v1.11+; use the "sysctls" field instead`},
		{"security.alpha.kubernetes.io/unsafe-sysctls", `non-functional in v1.11+; use the "sysctls" field instead`},
	} {
		if _, ok := w.meta.Annotations[old.key]; ok {
			w.add(at.Key(old.key), "%s", old.message)
		}
	}
	if w.spec.SecurityContext == nil || w.spec.SecurityContext.SeccompProfile == nil {
		if _, ok := w.meta.Annotations[corev1.SeccompPodAnnotationKey]; ok {
			w.add(at.Key(corev1.SeccompPodAnnotationKey), `non-functional in v1.27+; use the "seccompProfile" field instead`)
		}
	}
}

// profiles warns about seccomp and AppArmor annotations for the container ctr, if the fields that replaced them are not
// set. For a pod, it does not warn about AppArmor, because creation has done so. at is the path of the annotations.
func (w *warner) profiles(ctr *corev1.Container, at *field.Path) {
	if len(w.meta.Annotations) == 0 {
		return
	}
	var sc corev1.SecurityContext
	if ctr.SecurityContext != nil {
		sc = *ctr.SecurityContext
	}
	key := corev1.SeccompContainerAnnotationKeyPrefix + ctr.Name
	if _, ok := w.meta.Annotations[key]; ok && sc.SeccompProfile == nil {
		w.add(at.Key(key), `non-functional in v1.27+; use the "seccompProfile" field instead`)
	}
	if w.path == nil {
		return // copyAppArmor has returned the warning
	}
	inherited := w.spec.SecurityContext != nil && w.spec.SecurityContext.AppArmorProfile != nil
	key = corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix + ctr.Name
	if _, ok := w.meta.Annotations[key]; ok && sc.AppArmorProfile == nil && !inherited {
		w.add(at.Key(key), `deprecated since v1.30; use the "appArmorProfile" field instead`)
	}
}

// volume warns about volume types that no longer work, and about the claim template of an ephemeral volume.
func (w *warner) volume(v *corev1.VolumeSource, at *field.Path) {
	for _, gone := range [...]struct {
		set           bool
		name, message string
	}{
		{v.PhotonPersistentDisk != nil, "photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"},
		{v.GitRepo != nil, "gitRepo", "deprecated in v1.11, and disabled by default in v1.33+"},
		{v.ScaleIO != nil, "scaleIO", "deprecated in v1.16, non-functional in v1.22+"},
		{v.Flocker != nil, "flocker", "deprecated in v1.22, non-functional in v1.25+"},
		{v.StorageOS != nil, "storageOS", "deprecated in v1.22, non-functional in v1.25+"},
		{v.Quobyte != nil, "quobyte", "deprecated in v1.22, non-functional in v1.25+"},
		{v.Glusterfs != nil, "glusterfs", "deprecated in v1.25, non-functional in v1.26+"},
		{v.CephFS != nil, "cephfs", "deprecated in v1.28, non-functional in v1.31+"},
		{v.RBD != nil, "rbd", "deprecated in v1.28, non-functional in v1.31+"},
	} {
		if gone.set {
			w.add(at.Child(gone.name), "%s", gone.message)
		}
	}
	if v.Ephemeral != nil && v.Ephemeral.VolumeClaimTemplate != nil {
		w.list = append(w.list, volume.ClaimSpecWarnings(&v.Ephemeral.VolumeClaimTemplate.Spec, at.Child("ephemeral", "volumeClaimTemplate", "spec", "resources"))...)
	}
}

// duplicates warns about host aliases with the same IP and about repeated or empty image pull secrets.
func (w *warner) duplicates(at *field.Path) {
	for i, alias := range w.spec.HostAliases {
		if slices.ContainsFunc(w.spec.HostAliases[:i], func(o corev1.HostAlias) bool { return o.IP == alias.IP }) {
			w.add(at.Child("hostAliases").Index(i).Child("ip"), "duplicate ip %q", alias.IP)
		}
	}
	for i, secret := range w.spec.ImagePullSecrets {
		name := at.Child("imagePullSecrets").Index(i).Child("name")
		if slices.Contains(w.spec.ImagePullSecrets[:i], secret) {
			w.add(name, "duplicate name %q", secret.Name)
		}
		if secret.Name == "" {
			w.add(name, "invalid empty name %q", secret.Name)
		}
	}
}

// fractions warns about fractions of bytes, which usually are caused by the unit "m" instead of
// "M".
func (w *warner) fractions(list corev1.ResourceList, at *field.Path) {
	for _, name := range []corev1.ResourceName{corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
		if q, ok := list[name]; ok && q.MilliValue()%1000 != 0 {
			w.add(at.Key(string(name)), "fractional byte value %q is invalid, must be an integer", q.String())
		}
	}
}

// env warns about variables that are set twice, unless the second definition refers to the first.
func (w *warner) env(vars []corev1.EnvVar, path *field.Path) {
	for i, v := range vars {
		if !slices.ContainsFunc(vars[:i], func(o corev1.EnvVar) bool { return o.Name == v.Name }) {
			continue
		}
		ref := "$(" + v.Name + ")"
		if v.ValueFrom != nil || v.Value == ref || !strings.Contains(v.Value, ref) {
			w.add(path.Index(i), "hides previous definition of %q, which may be dropped when using apply", v.Name)
		}
	}
}

// ports warns about container ports that conflict with another port or port name, in the same or
// another container of the pod.
func (w *warner) ports(at *field.Path) {
	type port struct {
		at *field.Path
		corev1.ContainerPort
	}
	var all []port
	eachContainer(w.spec, at, func(ctr *corev1.Container, at *field.Path) {
		for i, p := range ctr.Ports {
			here := at.Child("ports").Index(i)
			if p.HostIP != "" && p.HostPort == 0 {
				w.add(here, "hostIP set without hostPort: %+v", p)
			}
			for _, o := range all {
				switch {
				case o.ContainerPort.ContainerPort != p.ContainerPort || o.Protocol != p.Protocol:
				case o.HostIP == p.HostIP && o.HostPort == p.HostPort:
					w.add(here, "duplicate port definition with %s", o.at)
				case o.HostPort == 0 || p.HostPort == 0:
					w.add(here, "overlapping port definition with %s", o.at)
				case o.HostPort == p.HostPort && (o.HostIP == "") != (p.HostIP == ""):
					w.add(here, "dangerously ambiguous port definition with %s", o.at)
				}
			}
			all = append(all, port{here, p})
		}
	})
	named := map[string]*field.Path{}
	eachContainer(w.spec, at, func(ctr *corev1.Container, at *field.Path) {
		for i, p := range ctr.Ports {
			here := at.Child("ports").Index(i)
			switch first := named[p.Name]; {
			case p.Name == "":
			case first != nil:
				w.add(here, "duplicate port name %q with %s, services and probes that select ports by name will use %s", p.Name, first, first)
			default:
				named[p.Name] = here
			}
		}
	})
}
