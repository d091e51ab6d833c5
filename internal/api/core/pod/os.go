package pod

import (
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api/validate"
)

// checkOS validates spec.os and rejects fields that only the other operating system supports. Pods
// that do not specify an operating system may use both.
func checkOS(e *validate.Errors, spec *corev1.PodSpec, path *field.Path) {
	if spec.OS == nil {
		return
	}
	switch spec.OS.Name {
	case "":
		e.Required(path.Child("os", "name"), "")
	case corev1.Linux:
		checkLinux(e, spec, path)
	case corev1.Windows:
		checkWindows(e, spec, path)
	default:
		validate.OneOf(e, path.Child("os"), spec.OS.Name, corev1.Linux, corev1.Windows)
	}
}

func checkLinux(e *validate.Errors, spec *corev1.PodSpec, path *field.Path) {
	const cannot = "windows options cannot be set for a linux pod"
	if sc := spec.SecurityContext; sc != nil && sc.WindowsOptions != nil {
		e.Forbidden(path.Child("securityContext", "windowsOptions"), cannot)
	}
	eachContainer(spec, path, func(ctr *corev1.Container, at *field.Path) {
		if sc := ctr.SecurityContext; sc != nil && sc.WindowsOptions != nil {
			e.Forbidden(at.Child("securityContext", "windowsOptions"), cannot)
		}
	})
}

// checkWindows reports the fields that are set but forbidden for a Windows pod.
func checkWindows(e *validate.Errors, spec *corev1.PodSpec, path *field.Path) {
	refuse := func(set bool, at *field.Path, names ...string) {
		if set {
			e.Forbidden(at.Child(names[0], names[1:]...), "cannot be set for a windows pod")
		}
	}
	if sc := spec.SecurityContext; sc != nil {
		refuse(sc.AppArmorProfile != nil, path, "securityContext", "appArmorProfile")
		refuse(sc.SELinuxOptions != nil, path, "securityContext", "seLinuxOptions")
		refuse(sc.SeccompProfile != nil, path, "securityContext", "seccompProfile")
		refuse(sc.FSGroup != nil, path, "securityContext", "fsGroup")
		refuse(sc.FSGroupChangePolicy != nil, path, "securityContext", "fsGroupChangePolicy")
		refuse(len(sc.Sysctls) > 0, path, "securityContext", "sysctls")
		refuse(sc.RunAsUser != nil, path, "securityContext", "runAsUser")
		refuse(sc.RunAsGroup != nil, path, "securityContext", "runAsGroup")
		refuse(sc.SupplementalGroups != nil, path, "securityContext", "supplementalGroups")
		refuse(sc.SupplementalGroupsPolicy != nil, path, "securityContext", "supplementalGroupsPolicy")
		refuse(sc.SELinuxChangePolicy != nil, path, "securityContext", "seLinuxChangePolicy")
	}
	refuse(spec.HostUsers != nil, path, "hostUsers")
	refuse(spec.HostPID, path, "hostPID")
	refuse(spec.HostIPC, path, "hostIPC")
	refuse(spec.ShareProcessNamespace != nil, path, "shareProcessNamespace")
	eachContainer(spec, path, func(ctr *corev1.Container, at *field.Path) {
		sc := ctr.SecurityContext
		if sc == nil {
			return
		}
		refuse(sc.AppArmorProfile != nil, at, "securityContext", "appArmorProfile")
		refuse(sc.SELinuxOptions != nil, at, "securityContext", "seLinuxOptions")
		refuse(sc.SeccompProfile != nil, at, "securityContext", "seccompProfile")
		refuse(sc.Capabilities != nil, at, "securityContext", "capabilities")
		refuse(sc.ReadOnlyRootFilesystem != nil, at, "securityContext", "readOnlyRootFilesystem")
		refuse(sc.Privileged != nil, at, "securityContext", "privileged")
		refuse(sc.AllowPrivilegeEscalation != nil, at, "securityContext", "allowPrivilegeEscalation")
		refuse(sc.ProcMount != nil, at, "securityContext", "procMount")
		refuse(sc.RunAsUser != nil, at, "securityContext", "runAsUser")
		refuse(sc.RunAsGroup != nil, at, "securityContext", "runAsGroup")
	})
}

// checkHostProcess checks that either all or none of the containers of a pod are Windows
// HostProcess containers, and that the pod then uses the host network.
func checkHostProcess(e *validate.Errors, spec *corev1.PodSpec, path *field.Path) {
	var pod *bool
	if sc := spec.SecurityContext; sc != nil && sc.WindowsOptions != nil {
		pod = sc.WindowsOptions.HostProcess
	}
	all, host := 0, 0
	eachContainer(spec, path, func(ctr *corev1.Container, at *field.Path) {
		hostProcess := pod
		if sc := ctr.SecurityContext; sc != nil && sc.WindowsOptions != nil && sc.WindowsOptions.HostProcess != nil {
			hostProcess = sc.WindowsOptions.HostProcess
			if pod != nil && *pod != *hostProcess {
				e.Invalid(at.Child("securityContext", "windowsOptions", "hostProcess"), *hostProcess,
					fmt.Sprintf("pod hostProcess value must be identical if both are specified, was %v", *pod))
			}
		}
		all++
		if hostProcess != nil && *hostProcess {
			host++
		}
	})
	if host == 0 {
		return
	}
	if host != all {
		e.Invalid(path, "", "If pod contains any hostProcess containers then all containers must be HostProcess containers")
	}
	if !spec.HostNetwork {
		e.Invalid(path.Child("hostNetwork"), false, "hostNetwork must be true if pod contains any hostProcess containers")
	}
}

// Formats of Windows user and domain names in spec.securityContext.windowsOptions.runAsUserName.
var (
	controlChars    = regexp.MustCompile(`[[:cntrl:]]+`)
	netBIOSDomain   = regexp.MustCompile(`^[^\\/:\*\?"<>|\.][^\\/:\*\?"<>|]{0,14}$`)
	dnsDomain       = regexp.MustCompile(`^[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?)*$`)
	onlyDotsOrSpace = regexp.MustCompile(`^[\. ]+$`)
)

func checkWindowsOptions(e *validate.Errors, o *corev1.WindowsSecurityContextOptions, at *field.Path) {
	if o == nil {
		return
	}
	if o.GMSACredentialSpecName != nil {
		e.Subdomain(at.Child("gmsaCredentialSpecName"), *o.GMSACredentialSpecName)
	}
	if o.GMSACredentialSpec != nil {
		switch n := len(*o.GMSACredentialSpec); {
		case n == 0:
			e.Invalid(at.Child("gmsaCredentialSpec"), o.GMSACredentialSpec, "gmsaCredentialSpec cannot be an empty string")
		case n > 64<<10:
			e.Invalid(at.Child("gmsaCredentialSpec"), o.GMSACredentialSpec, "gmsaCredentialSpec size must be under 64 KiB")
		}
	}
	if o.RunAsUserName != nil {
		checkWindowsUser(e, *o.RunAsUserName, at.Child("runAsUserName"))
	}
}

// checkWindowsUser validates a Windows user name, which is a user or DOMAIN\USER.
func checkWindowsUser(e *validate.Errors, name string, at *field.Path) {
	switch {
	case name == "":
		e.Invalid(at, name, "runAsUserName cannot be an empty string")
		return
	case controlChars.MatchString(name):
		e.Invalid(at, name, "runAsUserName cannot contain control characters")
		return
	case strings.Count(name, `\`) > 1:
		e.Invalid(at, name, "runAsUserName cannot contain more than one backslash")
		return
	}
	domain, user, hasDomain := strings.Cut(name, `\`)
	if !hasDomain {
		domain, user = "", name
	}
	if len(domain) >= 256 {
		e.Invalid(at, name, "runAsUserName's Domain length must be under 256 characters")
	}
	if hasDomain && !netBIOSDomain.MatchString(domain) && !dnsDomain.MatchString(domain) {
		e.Invalid(at, name, "runAsUserName's Domain doesn't match the NetBios nor the DNS format")
	}
	switch {
	case user == "":
		e.Invalid(at, name, "runAsUserName's User cannot be empty")
	case len(user) > 104:
		e.Invalid(at, name, "runAsUserName's User length must not be longer than 104 characters")
	}
	if onlyDotsOrSpace.MatchString(user) {
		e.Invalid(at, name, "runAsUserName's User cannot contain only periods or spaces")
	}
	if strings.ContainsAny(user, `"/\:;|=,+*?<>@[]`) {
		e.Invalid(at, name, `runAsUserName's User cannot contain the following characters: "/\:;|=,+*?<>@[]`)
	}
}
