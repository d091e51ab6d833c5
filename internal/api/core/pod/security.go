package pod

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/component-helpers/node/util/sysctl"

	"hyperkube/internal/api/validate"
)

// checkSharedProcesses rejects shareProcessNamespace together with hostPID.
func checkSharedProcesses(e *validate.Errors, spec *corev1.PodSpec, path *field.Path) {
	if share := spec.ShareProcessNamespace; share != nil && *share && spec.HostPID {
		e.Invalid(path.Child("shareProcessNamespace"), *share, "ShareProcessNamespace and HostPID cannot both be enabled")
	}
}

// checkPodSecurityContext validates the security context in the pod spec and adds the errors to e. at is its field
// path.
func checkPodSecurityContext(e *validate.Errors, spec *corev1.PodSpec, at *field.Path) {
	sc := spec.SecurityContext
	if sc == nil {
		return
	}
	if sc.FSGroup != nil {
		e.InvalidAll(at.Child("fsGroup"), *sc.FSGroup, validation.IsValidGroupID(*sc.FSGroup))
	}
	checkUserAndGroup(e, sc.RunAsUser, sc.RunAsGroup, at)
	for i, gid := range sc.SupplementalGroups {
		e.InvalidAll(at.Child("supplementalGroups").Index(i), gid, validation.IsValidGroupID(gid))
	}
	checkSysctls(e, spec, sc.Sysctls, at.Child("sysctls"))
	if p := sc.FSGroupChangePolicy; p != nil {
		validate.OneOf(e, at.Child("fsGroupChangePolicy"), *p, corev1.FSGroupChangeAlways, corev1.FSGroupChangeOnRootMismatch)
	}
	checkSeccomp(e, sc.SeccompProfile, at.Child("seccompProfile"))
	checkWindowsOptions(e, sc.WindowsOptions, at.Child("windowsOptions"))
	checkAppArmor(e, sc.AppArmorProfile, at.Child("appArmorProfile"))
	if p := sc.SupplementalGroupsPolicy; p != nil {
		validate.OneOf(e, at.Child("supplementalGroupsPolicy"), *p, corev1.SupplementalGroupsPolicyMerge, corev1.SupplementalGroupsPolicyStrict)
	}
	if p := sc.SELinuxChangePolicy; p != nil {
		validate.OneOf(e, at.Child("seLinuxChangePolicy"), *p, corev1.SELinuxChangePolicyMountOption, corev1.SELinuxChangePolicyRecursive)
	}
}

func checkUserAndGroup(e *validate.Errors, user, group *int64, at *field.Path) {
	if user != nil {
		e.InvalidAll(at.Child("runAsUser"), *user, validation.IsValidUserID(*user))
	}
	if group != nil {
		e.InvalidAll(at.Child("runAsGroup"), *group, validation.IsValidGroupID(*group))
	}
}

// checkSecurityContext validates the security context of a container.
func (c *checker) checkSecurityContext(sc *corev1.SecurityContext, at *field.Path) {
	checkUserAndGroup(&c.Errors, sc.RunAsUser, sc.RunAsGroup, at)
	if sc.ProcMount != nil {
		validate.OneOf(&c.Errors, at.Child("procMount"), *sc.ProcMount, corev1.DefaultProcMount, corev1.UnmaskedProcMount)
		if c.hostUsers && *sc.ProcMount == corev1.UnmaskedProcMount {
			c.Invalid(at.Child("procMount"), sc.ProcMount, "`hostUsers` must be false to use `Unmasked`")
		}
	}
	checkSeccomp(&c.Errors, sc.SeccompProfile, at.Child("seccompProfile"))
	if sc.AllowPrivilegeEscalation != nil && !*sc.AllowPrivilegeEscalation {
		if isPrivileged(sc) {
			c.Invalid(at, sc, "cannot set `allowPrivilegeEscalation` to false and `privileged` to true")
		}
		if sc.Capabilities != nil {
			for _, capability := range sc.Capabilities.Add {
				if capability == "CAP_SYS_ADMIN" {
					c.Invalid(at, sc, "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN")
				}
			}
		}
	}
	checkWindowsOptions(&c.Errors, sc.WindowsOptions, at.Child("windowsOptions"))
	checkAppArmor(&c.Errors, sc.AppArmorProfile, at.Child("appArmorProfile"))
}

func checkSeccomp(e *validate.Errors, p *corev1.SeccompProfile, at *field.Path) {
	if p == nil {
		return
	}
	if p.Type == "" {
		e.Required(at.Child("type"), "type is required when seccompProfile is set")
	} else {
		validate.OneOf(e, at.Child("type"), p.Type,
			corev1.SeccompProfileTypeLocalhost, corev1.SeccompProfileTypeRuntimeDefault, corev1.SeccompProfileTypeUnconfined)
	}
	profile := at.Child("localhostProfile")
	switch local := p.Type == corev1.SeccompProfileTypeLocalhost; {
	case local && p.LocalhostProfile == nil:
		e.Required(profile, "must be set when seccomp type is Localhost")
	case local:
		e.DescendingPath(profile, *p.LocalhostProfile)
	case p.LocalhostProfile != nil:
		e.Invalid(profile, p, "can only be set when seccomp type is Localhost")
	}
}

func checkAppArmor(e *validate.Errors, p *corev1.AppArmorProfile, at *field.Path) {
	if p == nil {
		return
	}
	profile := at.Child("localhostProfile")
	switch p.Type {
	case corev1.AppArmorProfileTypeLocalhost:
		const longest = 4095 // PATH_MAX without the terminating null byte
		switch {
		case p.LocalhostProfile == nil || *p.LocalhostProfile == "":
			e.Required(profile, "must be set when AppArmor type is Localhost")
			return
		case strings.TrimSpace(*p.LocalhostProfile) != *p.LocalhostProfile:
			e.Invalid(profile, *p.LocalhostProfile, "must not be padded with whitespace")
		}
		if len(*p.LocalhostProfile) > longest {
			e.Add(field.ErrorList{field.TooLong(profile, "", longest)})
		}
	case corev1.AppArmorProfileTypeRuntimeDefault, corev1.AppArmorProfileTypeUnconfined:
		if p.LocalhostProfile != nil {
			e.Invalid(profile, p.LocalhostProfile, "can only be set when AppArmor type is Localhost")
		}
	case "":
		e.Required(at.Child("type"), "type is required when appArmorProfile is set")
	default:
		validate.OneOf(e, at.Child("type"), p.Type,
			corev1.AppArmorProfileTypeLocalhost, corev1.AppArmorProfileTypeRuntimeDefault, corev1.AppArmorProfileTypeUnconfined)
	}
}

// sysctlName is the format of sysctl names, see sysctl(8).
var sysctlName = regexp.MustCompile(`^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$`)

// checkSysctls validates sysctls, whose names must be unique. A pod that uses a namespace of the host cannot set the
// sysctls of that namespace.
func checkSysctls(e *validate.Errors, spec *corev1.PodSpec, sysctls []corev1.Sysctl, path *field.Path) {
	for i, s := range sysctls {
		at := path.Index(i).Child("name")
		switch {
		case s.Name == "":
			e.Required(at, "")
		case len(s.Name) > 253 || !sysctlName.MatchString(s.Name):
			e.Invalid(at, s.Name, fmt.Sprintf("must have at most %d characters and match regex %s", 253, sysctlName))
		case slices.ContainsFunc(sysctls[:i], func(o corev1.Sysctl) bool { return o.Name == s.Name }):
			e.Duplicate(at, s.Name)
		}
		switch namespace, _, _ := sysctl.GetNamespace(s.Name); {
		case spec.HostNetwork && namespace == sysctl.NetNamespace:
			e.Invalid(at, s.Name, "may not be specified when 'hostNetwork' is true")
		case spec.HostIPC && namespace == sysctl.IPCNamespace:
			e.Invalid(at, s.Name, "may not be specified when 'hostIPC' is true")
		}
	}
}

// checkAnnotations validates the annotations of a pod or template that Kubernetes interprets: those
// of mirror pods, the deletion cost, and deprecated seccomp and AppArmor profiles.
func checkAnnotations(e *validate.Errors, spec *corev1.PodSpec, annotations map[string]string, path *field.Path) {
	if len(annotations) == 0 {
		return
	}
	if value, ok := annotations[corev1.MirrorPodAnnotationKey]; ok && spec.NodeName == "" {
		e.Invalid(path.Key(corev1.MirrorPodAnnotationKey), value, "must set spec.nodeName if mirror pod annotation is set")
	}
	if value, ok := annotations[corev1.PodDeletionCost]; ok && !isInt32(value) {
		e.Invalid(path.Key(corev1.PodDeletionCost), value, "must be a 32bit integer")
	}
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		value := annotations[key]
		if key == corev1.SeccompPodAnnotationKey || strings.HasPrefix(key, corev1.SeccompContainerAnnotationKeyPrefix) {
			checkSeccompAnnotation(e, value, path.Child(key))
		}
		if name, ok := strings.CutPrefix(key, corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix); ok {
			checkAppArmorAnnotation(e, spec, name, value, path.Key(key))
		}
	}
}

func checkSeccompAnnotation(e *validate.Errors, value string, at *field.Path) {
	switch local, ok := strings.CutPrefix(value, corev1.SeccompLocalhostProfileNamePrefix); {
	case value == corev1.SeccompProfileRuntimeDefault, value == corev1.DeprecatedSeccompProfileDockerDefault,
		value == corev1.SeccompProfileNameUnconfined:
	case ok:
		e.DescendingPath(at, local)
	default:
		e.Invalid(at, value, "must be a valid seccomp profile")
	}
}

func checkAppArmorAnnotation(e *validate.Errors, spec *corev1.PodSpec, container, value string, at *field.Path) {
	found := false
	eachContainer(spec, nil, func(ctr *corev1.Container, _ *field.Path) { found = found || ctr.Name == container })
	if !found {
		e.Invalid(at, container, "container not found")
	}
	if value != "" && value != corev1.DeprecatedAppArmorBetaProfileRuntimeDefault &&
		value != corev1.DeprecatedAppArmorBetaProfileNameUnconfined &&
		!strings.HasPrefix(value, corev1.DeprecatedAppArmorBetaProfileNamePrefix) {
		e.Invalid(at, value, fmt.Sprintf("invalid AppArmor profile name: %q", value))
	}
}

// checkProfilesMatch rejects deprecated seccomp and AppArmor annotations that contradict the fields
// that replaced them.
func checkProfilesMatch(e *validate.Errors, spec *corev1.PodSpec, meta *metav1.ObjectMeta, path *field.Path) {
	if len(meta.Annotations) == 0 {
		return
	}
	var pod corev1.PodSecurityContext
	if spec.SecurityContext != nil {
		pod = *spec.SecurityContext
	}
	if pod.SeccompProfile != nil {
		if value, ok := meta.Annotations[corev1.SeccompPodAnnotationKey]; ok {
			checkSeccompMatch(e, value, pod.SeccompProfile, path.Child("securityContext", "seccompProfile"))
		}
	}
	eachContainer(spec, path, func(ctr *corev1.Container, at *field.Path) {
		var sc corev1.SecurityContext
		if ctr.SecurityContext != nil {
			sc = *ctr.SecurityContext
		}
		if value, ok := meta.Annotations[corev1.SeccompContainerAnnotationKeyPrefix+ctr.Name]; ok && sc.SeccompProfile != nil {
			checkSeccompMatch(e, value, sc.SeccompProfile, at.Child("securityContext", "seccompProfile"))
		}
		if spec.OS != nil && spec.OS.Name == corev1.Windows {
			return
		}
		profile := sc.AppArmorProfile
		if profile == nil {
			profile = pod.AppArmorProfile
		}
		if value, ok := meta.Annotations[corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix+ctr.Name]; ok && profile != nil {
			checkAppArmorMatch(e, value, profile, at.Child("securityContext", "appArmorProfile"))
		}
	})
}

// checkSeccompMatch checks that value, a deprecated seccomp annotation, specifies the same profile as the field p.
func checkSeccompMatch(e *validate.Errors, value string, p *corev1.SeccompProfile, at *field.Path) {
	local, isLocal := strings.CutPrefix(value, corev1.SeccompLocalhostProfileNamePrefix)
	same := true
	switch p.Type {
	case corev1.SeccompProfileTypeUnconfined:
		same = value == corev1.SeccompProfileNameUnconfined
	case corev1.SeccompProfileTypeRuntimeDefault:
		same = value == corev1.SeccompProfileRuntimeDefault || value == corev1.DeprecatedSeccompProfileDockerDefault
	case corev1.SeccompProfileTypeLocalhost:
		same = isLocal
		if isLocal && (p.LocalhostProfile == nil || *p.LocalhostProfile != local) {
			e.Forbidden(at.Child("localhostProfile"), "seccomp profile in annotation and field must match")
		}
	}
	if !same {
		e.Forbidden(at.Child("type"), "seccomp type in annotation and field must match")
	}
}

// checkAppArmorMatch checks that value, a deprecated AppArmor annotation, specifies the same profile as the field p.
func checkAppArmorMatch(e *validate.Errors, value string, p *corev1.AppArmorProfile, at *field.Path) {
	local, isLocal := strings.CutPrefix(value, corev1.DeprecatedAppArmorBetaProfileNamePrefix)
	same := true
	switch p.Type {
	case corev1.AppArmorProfileTypeUnconfined:
		same = value == corev1.DeprecatedAppArmorBetaProfileNameUnconfined
	case corev1.AppArmorProfileTypeRuntimeDefault:
		same = value == corev1.DeprecatedAppArmorBetaProfileRuntimeDefault
	case corev1.AppArmorProfileTypeLocalhost:
		same = isLocal
		if isLocal && (p.LocalhostProfile == nil || *p.LocalhostProfile != local) {
			e.Forbidden(at.Child("localhostProfile"), "apparmor profile in annotation and field must match")
		}
	}
	if !same {
		e.Forbidden(at.Child("type"), "apparmor type in annotation and field must match")
	}
}
