package pod

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"hyperkube/internal/api/core/volume"
	"hyperkube/internal/api/validate"
	"hyperkube/internal/pod/podutil"
)

// checkContainers validates the regular containers at path, of which there must be at least one.
func (c *checker) checkContainers(path *field.Path) {
	if len(c.spec.Containers) == 0 {
		c.Required(path, "")
		return
	}
	for i := range c.spec.Containers {
		ctr, at := &c.spec.Containers[i], path.Index(i)
		c.checkContainer(ctr, at)
		if slices.ContainsFunc(c.spec.Containers[:i], func(o corev1.Container) bool { return o.Name == ctr.Name }) {
			c.Duplicate(at.Child("name"), ctr.Name)
		}
		checkHooksAndProbes(&c.Errors, c.spec, ctr, at)
		checkRestartPolicy(&c.Errors, ctr, at)
	}
	checkHostPorts(&c.Errors, c.spec.Containers, path)
}

// checkInitContainers validates the init containers. Those with restart policy Always are sidecars
// and may use the same fields as regular containers.
func (c *checker) checkInitContainers(path *field.Path) {
	for i := range c.spec.InitContainers {
		ctr, at := &c.spec.InitContainers[i], path.Index(i)
		c.checkContainer(ctr, at)
		if ctr.RestartPolicy == nil && len(ctr.RestartPolicyRules) > 0 {
			c.Required(at.Child("restartPolicy"), "must specify restartPolicy when restart rules are used")
		} else {
			checkRestartPolicy(&c.Errors, ctr, at)
		}
		same := func(o corev1.Container) bool { return o.Name != "" && o.Name == ctr.Name }
		if slices.ContainsFunc(c.spec.Containers, same) || slices.ContainsFunc(c.spec.InitContainers[:i], same) {
			c.Duplicate(at.Child("name"), ctr.Name)
		}
		// Init containers run one by one, so host ports can only conflict within one container.
		checkHostPorts(&c.Errors, c.spec.InitContainers[i:i+1], path)
		if podutil.Sidecar(ctr) {
			checkHooksAndProbes(&c.Errors, c.spec, ctr, at)
			continue
		}
		for _, f := range []struct {
			name string
			set  bool
		}{
			{"lifecycle", ctr.Lifecycle != nil},
			{"livenessProbe", ctr.LivenessProbe != nil},
			{"readinessProbe", ctr.ReadinessProbe != nil},
			{"startupProbe", ctr.StartupProbe != nil},
		} {
			if f.set {
				c.Forbidden(at.Child(f.name), "may not be set for init containers without restartPolicy=Always")
			}
		}
		// Completed init containers are not restarted.
		for j, p := range ctr.ResizePolicy {
			if p.RestartPolicy == corev1.RestartContainer {
				c.Invalid(at.Child("resizePolicy").Index(j).Child("restartPolicy"), p.RestartPolicy, "must not be set to 'RestartContainer' for non-sidecar initContainers")
			}
		}
	}
}

// checkEphemeralContainers validates ephemeral containers, which must not have ports, probes, hooks
// or resources.
func (c *checker) checkEphemeralContainers(path *field.Path) {
	if len(c.spec.EphemeralContainers) == 0 {
		return
	}
	names := map[string]bool{}
	for i := range c.spec.Containers {
		names[c.spec.Containers[i].Name] = true
	}
	for i := range c.spec.InitContainers {
		names[c.spec.InitContainers[i].Name] = true
	}
	others := make(map[string]bool, len(c.spec.EphemeralContainers))
	for i := range c.spec.EphemeralContainers {
		ec, at := &c.spec.EphemeralContainers[i], path.Index(i)
		ctr := (*corev1.Container)(&ec.EphemeralContainerCommon)
		c.checkContainer(ctr, at)
		checkImageSpace(&c.Errors, ctr, at)
		if names[ec.Name] || others[ec.Name] {
			c.Duplicate(at.Child("name"), ec.Name)
		}
		others[ec.Name] = true
		if ec.TargetContainerName != "" && !names[ec.TargetContainerName] {
			c.NotFound(at.Child("targetContainerName"), ec.TargetContainerName)
		}
		const cannot = "cannot be set for an Ephemeral Container"
		volume.OnlyFields(&c.Errors, ec.EphemeralContainerCommon, cannot, at,
			"Name", "Image", "Command", "Args", "WorkingDir", "EnvFrom", "Env", "VolumeMounts", "VolumeDevices",
			"TerminationMessagePath", "TerminationMessagePolicy", "ImagePullPolicy", "SecurityContext",
			"Stdin", "StdinOnce", "TTY")
		for j, m := range ec.VolumeMounts {
			if m.SubPath != "" {
				c.Forbidden(at.Child("volumeMounts").Index(j).Child("subPath"), cannot)
			}
			if m.SubPathExpr != "" {
				c.Forbidden(at.Child("volumeMounts").Index(j).Child("subPathExpr"), cannot)
			}
		}
	}
}

// checkContainer validates the fields that all types of containers have in common.
func (c *checker) checkContainer(ctr *corev1.Container, at *field.Path) {
	if ctr.Name == "" {
		c.Required(at.Child("name"), "")
	} else {
		c.Label(at.Child("name"), ctr.Name)
	}
	if ctr.Image == "" {
		c.Required(at.Child("image"), "")
	}
	validate.RequiredOneOf(&c.Errors, at.Child("terminationMessagePolicy"), ctr.TerminationMessagePolicy,
		corev1.TerminationMessageReadFile, corev1.TerminationMessageFallbackToLogsOnError)
	checkPorts(&c.Errors, ctr.Ports, at.Child("ports"))
	checkEnv(&c.Errors, ctr.Env, at.Child("env"))
	checkEnvFrom(&c.Errors, ctr.EnvFrom, at.Child("envFrom"))
	c.checkMounts(ctr, at.Child("volumeMounts"))
	c.checkDevices(ctr, at.Child("volumeDevices"))
	checkPullPolicy(&c.Errors, ctr.ImagePullPolicy, at.Child("imagePullPolicy"))
	c.checkResources(&ctr.Resources, at.Child("resources"))
	checkResizePolicy(&c.Errors, c.spec, ctr, at.Child("resizePolicy"))
	if ctr.SecurityContext != nil {
		c.checkSecurityContext(ctr.SecurityContext, at.Child("securityContext"))
	}
}

// checkImageSpace rejects whitespace around the image name of a pod's container. It is not called
// for pod templates, because they have always accepted such whitespace.
func checkImageSpace(e *validate.Errors, ctr *corev1.Container, at *field.Path) {
	if strings.TrimSpace(ctr.Image) != ctr.Image {
		e.Invalid(at.Child("image"), ctr.Image, "must not have leading or trailing whitespace")
	}
}

func checkPullPolicy(e *validate.Errors, policy corev1.PullPolicy, at *field.Path) {
	validate.RequiredOneOf(e, at, policy, corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever)
}

func checkPorts(e *validate.Errors, ports []corev1.ContainerPort, path *field.Path) {
	for i := range ports {
		p, at := &ports[i], path.Index(i)
		if p.Name != "" {
			if msgs := validation.IsValidPortName(p.Name); len(msgs) > 0 {
				e.InvalidAll(at.Child("name"), p.Name, msgs)
			} else if slices.ContainsFunc(ports[:i], func(o corev1.ContainerPort) bool { return o.Name == p.Name }) {
				e.Duplicate(at.Child("name"), p.Name)
			}
		}
		if p.ContainerPort == 0 {
			e.Required(at.Child("containerPort"), "")
		} else {
			e.InvalidAll(at.Child("containerPort"), p.ContainerPort, validation.IsValidPortNum(int(p.ContainerPort)))
		}
		if p.HostPort != 0 {
			e.InvalidAll(at.Child("hostPort"), p.HostPort, validation.IsValidPortNum(int(p.HostPort)))
		}
		validate.RequiredOneOf(e, at.Child("protocol"), p.Protocol, corev1.ProtocolSCTP, corev1.ProtocolTCP, corev1.ProtocolUDP)
	}
}

// checkHostPorts rejects host ports that two of the containers at path use with the same protocol
// and host IP.
func checkHostPorts(e *validate.Errors, containers []corev1.Container, path *field.Path) {
	var taken map[string]bool
	for i := range containers {
		for j := range containers[i].Ports {
			p := &containers[i].Ports[j]
			if p.HostPort == 0 {
				continue
			}
			key := fmt.Sprintf("%s/%s/%d", p.Protocol, p.HostIP, p.HostPort)
			if taken[key] {
				e.Duplicate(path.Index(i).Child("ports").Index(j).Child("hostPort"), key)
				continue
			}
			if taken == nil {
				taken = map[string]bool{}
			}
			taken[key] = true
		}
	}
}

// checkMounts validates the volume mounts of a container. Each needs a volume of the pod and a unique path, and its
// volume and path must not be those of a block device of the container. Bidirectional propagation requires a privileged
// container.
func (c *checker) checkMounts(ctr *corev1.Container, path *field.Path) {
	for i := range ctr.VolumeMounts {
		m, at := &ctr.VolumeMounts[i], path.Index(i)
		if m.Name == "" {
			c.Required(at.Child("name"), "")
		}
		if _, ok := c.volumes[m.Name]; !ok {
			c.NotFound(at.Child("name"), m.Name)
		}
		if m.MountPath == "" {
			c.Required(at.Child("mountPath"), "")
		}
		if slices.ContainsFunc(ctr.VolumeMounts[:i], func(o corev1.VolumeMount) bool { return o.MountPath == m.MountPath }) {
			c.Invalid(at.Child("mountPath"), m.MountPath, "must be unique")
		}
		for _, d := range ctr.VolumeDevices {
			if d.Name == m.Name {
				c.Invalid(at.Child("name"), m.Name, "must not already exist in volumeDevices")
			}
			if d.DevicePath == m.MountPath {
				c.Invalid(at.Child("mountPath"), m.MountPath, "must not already exist as a path in volumeDevices")
			}
		}
		// In upstream, the following paths lack the index.
		if m.SubPath != "" {
			c.DescendingPath(path.Child("subPath"), m.SubPath)
		}
		if m.SubPathExpr != "" {
			if m.SubPath != "" {
				c.Invalid(at.Child("subPathExpr"), m.SubPathExpr, "subPathExpr and subPath are mutually exclusive")
			}
			c.DescendingPath(path.Child("subPathExpr"), m.SubPathExpr)
		}
		if m.MountPropagation != nil {
			validate.OneOf(&c.Errors, path.Child("mountPropagation"), *m.MountPropagation,
				corev1.MountPropagationBidirectional, corev1.MountPropagationHostToContainer, corev1.MountPropagationNone)
			if *m.MountPropagation == corev1.MountPropagationBidirectional && !isPrivileged(ctr.SecurityContext) {
				c.Forbidden(path.Child("mountPropagation"), "Bidirectional mount propagation is available only to privileged containers")
			}
		}
		checkRecursiveReadOnly(&c.Errors, m, path.Child("recursiveReadOnly"))
	}
}

func isPrivileged(sc *corev1.SecurityContext) bool {
	return sc != nil && ptr.Deref(sc.Privileged, false)
}

// checkRecursiveReadOnly validates recursiveReadOnly of a mount. It can only be enabled for read-only mounts without
// propagation.
func checkRecursiveReadOnly(e *validate.Errors, m *corev1.VolumeMount, at *field.Path) {
	if m.RecursiveReadOnly == nil {
		return
	}
	validate.OneOf(e, at, *m.RecursiveReadOnly,
		corev1.RecursiveReadOnlyDisabled, corev1.RecursiveReadOnlyEnabled, corev1.RecursiveReadOnlyIfPossible)
	switch *m.RecursiveReadOnly {
	case corev1.RecursiveReadOnlyEnabled, corev1.RecursiveReadOnlyIfPossible:
		if !m.ReadOnly {
			e.Forbidden(at, "may only be specified when readOnly is true")
		}
		if m.MountPropagation != nil && *m.MountPropagation != corev1.MountPropagationNone {
			e.Forbidden(at, "may only be specified when mountPropagation is None or not specified")
		}
	}
}

// checkDevices validates the block devices of a container. Each needs a volume of a claim and a unique path, and its
// volume and path must not be those of a mount of the container.
func (c *checker) checkDevices(ctr *corev1.Container, path *field.Path) {
	for i := range ctr.VolumeDevices {
		d, at := &ctr.VolumeDevices[i], path.Index(i)
		before := ctr.VolumeDevices[:i]
		if d.Name == "" {
			c.Required(at.Child("name"), "")
		} else if slices.ContainsFunc(before, func(o corev1.VolumeDevice) bool { return o.Name == d.Name }) {
			c.Invalid(at.Child("name"), d.Name, "must be unique")
		}
		if v, ok := c.volumes[d.Name]; !ok {
			c.NotFound(at.Child("name"), d.Name)
		} else if v.PersistentVolumeClaim == nil && v.Ephemeral == nil {
			c.Invalid(at.Child("name"), d.Name, "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode")
		}
		if d.DevicePath == "" {
			c.Required(at.Child("devicePath"), "")
		}
		if slices.ContainsFunc(before, func(o corev1.VolumeDevice) bool { return o.DevicePath == d.DevicePath }) {
			c.Invalid(at.Child("devicePath"), d.DevicePath, "must be unique")
		}
		if slices.Contains(strings.Split(d.DevicePath, "/"), "..") {
			c.Invalid(at.Child("devicePath"), d.DevicePath, "can not contain backsteps ('..')")
		}
		for _, m := range ctr.VolumeMounts {
			if m.Name == d.Name {
				c.Invalid(at.Child("name"), d.Name, "must not already exist in volumeMounts")
			}
			if m.MountPath == d.DevicePath {
				c.Invalid(at.Child("devicePath"), d.DevicePath, "must not already exist as a path in volumeMounts")
			}
		}
	}
}

func checkResizePolicy(e *validate.Errors, spec *corev1.PodSpec, ctr *corev1.Container, at *field.Path) {
	for i, p := range ctr.ResizePolicy {
		if slices.ContainsFunc(ctr.ResizePolicy[:i], func(o corev1.ContainerResizePolicy) bool { return o.ResourceName == p.ResourceName }) {
			e.Duplicate(at.Index(i), p.ResourceName)
		}
		validate.RequiredOneOf(e, at, p.ResourceName, corev1.ResourceCPU, corev1.ResourceMemory)
		validate.RequiredOneOf(e, at, p.RestartPolicy, corev1.NotRequired, corev1.RestartContainer)
		if spec.RestartPolicy == corev1.RestartPolicyNever && p.RestartPolicy != corev1.NotRequired {
			e.Invalid(at, p.RestartPolicy, "must be 'NotRequired' when pod `restartPolicy` is 'Never'")
		}
	}
}

// checkRestartPolicy validates the restart policy of a container and its restart rules (KEP-5307).
func checkRestartPolicy(e *validate.Errors, ctr *corev1.Container, at *field.Path) {
	if ctr.RestartPolicy != nil {
		validate.OneOf(e, at.Child("restartPolicy"), *ctr.RestartPolicy,
			corev1.ContainerRestartPolicyAlways, corev1.ContainerRestartPolicyNever, corev1.ContainerRestartPolicyOnFailure)
	}
	if len(ctr.RestartPolicyRules) == 0 {
		return
	}
	if ctr.RestartPolicy == nil {
		e.Required(at.Child("restartPolicy"), "must specify restartPolicy when restart rules are used")
	}
	rules := at.Child("restartPolicyRules")
	if n := len(ctr.RestartPolicyRules); n > 20 {
		e.Add(field.ErrorList{field.TooMany(rules, n, 20)})
	}
	for i, rule := range ctr.RestartPolicyRules {
		validate.OneOf(e, rules.Index(i).Child("action"), rule.Action,
			corev1.ContainerRestartRuleActionRestart, corev1.ContainerRestartRuleActionRestartAllContainers)
		codes := rules.Index(i).Child("exitCodes")
		if rule.ExitCodes == nil {
			e.Required(codes, "must be specified")
			continue
		}
		validate.OneOf(e, codes.Child("operator"), rule.ExitCodes.Operator,
			corev1.ContainerRestartRuleOnExitCodesOpIn, corev1.ContainerRestartRuleOnExitCodesOpNotIn)
		if n := len(rule.ExitCodes.Values); n > 255 {
			e.Add(field.ErrorList{field.TooMany(codes.Child("values"), n, 255)})
		}
	}
}
