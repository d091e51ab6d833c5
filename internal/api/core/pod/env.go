package pod

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api/validate"
)

// Fields of a pod that its containers can read in environment variables and downward API volumes, in the order of
// error messages.
var (
	envFieldPaths = []string{
		"metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName",
		"status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs",
	}
	volumeFieldPaths = []string{
		"metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid",
	}
	// otherFieldPaths are valid field labels of a pod that neither variables nor volumes can use.
	otherFieldPaths = []string{"spec.host", "spec.restartPolicy", "spec.schedulerName", "status.phase"}

	resourceFields = []string{
		"limits.cpu", "limits.ephemeral-storage", "limits.memory",
		"requests.cpu", "requests.ephemeral-storage", "requests.memory",
	}
	byteDivisors = []string{"1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"}
)

func checkEnv(e *validate.Errors, vars []corev1.EnvVar, path *field.Path) {
	for i := range vars {
		at := path.Index(i)
		if vars[i].Name == "" {
			e.Required(at.Child("name"), "")
		} else {
			e.InvalidAll(at.Child("name"), vars[i].Name, validation.IsRelaxedEnvVarName(vars[i].Name))
		}
		if vars[i].ValueFrom != nil {
			checkEnvSource(e, &vars[i], at.Child("valueFrom"))
		}
	}
}

// checkEnvSource validates the source of an environment variable, which must be set. A variable has exactly one source
// and no value.
func checkEnvSource(e *validate.Errors, v *corev1.EnvVar, at *field.Path) {
	from, sources := v.ValueFrom, 0
	if from.FieldRef != nil {
		sources++
		checkFieldRef(e, from.FieldRef, envFieldPaths, at.Child("fieldRef"))
	}
	if from.ResourceFieldRef != nil {
		sources++
		checkResourceFieldRef(e, from.ResourceFieldRef, false, at.Child("resourceFieldRef"))
	}
	if ref := from.ConfigMapKeyRef; ref != nil {
		sources++
		checkKeyRef(e, ref.Name, ref.Key, at.Child("configMapKeyRef"))
	}
	if ref := from.SecretKeyRef; ref != nil {
		sources++
		checkKeyRef(e, ref.Name, ref.Key, at.Child("secretKeyRef"))
	}
	if from.FileKeyRef != nil {
		sources++
		checkFileKeyRef(e, from.FileKeyRef, at.Child("fileKeyRef"))
	}
	switch {
	case sources == 0:
		e.Invalid(at, "", "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`")
	case v.Value != "":
		e.Invalid(at, "", "may not be specified when `value` is not empty")
	case sources > 1:
		e.Invalid(at, "", "may not have more than one field specified at a time")
	}
}

func checkKeyRef(e *validate.Errors, name, key string, at *field.Path) {
	e.InvalidAll(at.Child("name"), name, apivalidation.NameIsDNSSubdomain(name, false))
	if key == "" {
		e.Required(at.Child("key"), "")
	} else {
		e.InvalidAll(at.Child("key"), key, validation.IsConfigMapKey(key))
	}
}

// checkFileKeyRef validates an environment variable from a file in an emptyDir volume (KEP-3721).
func checkFileKeyRef(e *validate.Errors, ref *corev1.FileKeySelector, at *field.Path) {
	if ref.Key == "" {
		e.Required(at.Child("key"), "")
	} else {
		e.InvalidAll(at.Child("key"), ref.Key, validation.IsRelaxedEnvVarName(ref.Key))
	}
	if ref.VolumeName == "" {
		e.Required(at.Child("volumeName"), "")
	} else {
		e.Label(at.Child("volumeName"), ref.VolumeName)
	}
	if ref.Path == "" {
		e.Required(at.Child("path"), "")
	} else {
		e.PathNoBacksteps(at.Child("path"), ref.Path)
	}
}

// checkFileKeyVolumes checks that environment variables that are read from files refer to an
// emptyDir volume of the pod.
func checkFileKeyVolumes(e *validate.Errors, spec *corev1.PodSpec, path *field.Path) {
	eachContainer(spec, path, func(ctr *corev1.Container, at *field.Path) {
		for i, v := range ctr.Env {
			if v.ValueFrom == nil || v.ValueFrom.FileKeyRef == nil {
				continue
			}
			name, p := v.ValueFrom.FileKeyRef.VolumeName, at.Child("env").Index(i).Child("valueFrom", "fileKeyRef", "volumeName")
			// If several volumes have the same name, the last one counts.
			var source *corev1.VolumeSource
			for j := range spec.Volumes {
				if spec.Volumes[j].Name == name {
					source = &spec.Volumes[j].VolumeSource
				}
			}
			switch {
			case source == nil:
				e.NotFound(p, name)
			case source.EmptyDir == nil:
				e.Invalid(p, name, "referenced volume must be of type emptyDir")
			}
		}
	})
}

// subscript splits a field path with a subscript, such as metadata.labels['app'], into the path
// before the brackets and the key. For other paths it returns path, "" and false.
func subscript(path string) (string, string, bool) {
	rest, ok := strings.CutSuffix(path, "']")
	if !ok {
		return path, "", false
	}
	before, after, ok := strings.Cut(rest, "['")
	if !ok || before == "" {
		return path, "", false
	}
	return before, after, true
}

// checkFieldRef validates a reference to a field of the pod. offered are the fields that are allowed here, in addition
// to single annotations and labels. spec.host is the old name of spec.nodeName.
func checkFieldRef(e *validate.Errors, ref *corev1.ObjectFieldSelector, offered []string, at *field.Path) {
	if ref.APIVersion == "" {
		e.Required(at.Child("apiVersion"), "")
		return
	}
	if ref.FieldPath == "" {
		e.Required(at.Child("fieldPath"), "")
		return
	}
	base, key, ok := subscript(ref.FieldPath)
	problem := ""
	switch {
	case ref.APIVersion != "v1":
		problem = "unsupported pod version: " + ref.APIVersion
	case ok && base != "metadata.annotations" && base != "metadata.labels":
		problem = "field label does not support subscript: " + ref.FieldPath
	case !ok && !slices.Contains(envFieldPaths, base) && !slices.Contains(volumeFieldPaths, base) && !slices.Contains(otherFieldPaths, base):
		problem = "field label not supported: " + ref.FieldPath
	}
	switch {
	case problem != "":
		e.Invalid(at.Child("fieldPath"), ref.FieldPath, "error converting fieldPath: "+problem)
	case ok && base == "metadata.annotations":
		e.QualifiedName(at, strings.ToLower(key))
	case ok:
		e.QualifiedName(at, key)
	default:
		if base == "spec.host" {
			base = "spec.nodeName"
		}
		if !slices.Contains(offered, base) {
			e.Add(field.ErrorList{field.NotSupported(at.Child("fieldPath"), base, offered)})
		}
	}
}

func isHugePageField(resource string) bool {
	return strings.HasPrefix(resource, "requests.hugepages-") || strings.HasPrefix(resource, "limits.hugepages-")
}

// checkResourceFieldRef validates a reference to a resource of a container. In a volume, the name of the container is
// required. Each resource allows certain divisors; 0, which means the default, is always valid.
func checkResourceFieldRef(e *validate.Errors, ref *corev1.ResourceFieldSelector, inVolume bool, at *field.Path) {
	switch {
	case inVolume && ref.ContainerName == "":
		e.Required(at.Child("containerName"), "")
	case ref.Resource == "":
		e.Required(at.Child("resource"), "")
	case !slices.Contains(resourceFields, ref.Resource) && !isHugePageField(ref.Resource):
		e.Add(field.ErrorList{field.NotSupported(at.Child("resource"), ref.Resource, resourceFields)})
	}
	// Use a copy, because String modifies the quantity.
	q := ref.Divisor
	if q.IsZero() {
		return
	}
	divisor := q.String()
	var of string
	switch {
	case ref.Resource == "limits.cpu" || ref.Resource == "requests.cpu":
		if divisor != "1m" && divisor != "1" {
			e.Invalid(at.Child("divisor"), ref.Resource, "only divisor's values 1m and 1 are supported with the cpu resource")
		}
		return
	case strings.HasSuffix(ref.Resource, "s.memory"):
		of = "memory"
	case strings.HasSuffix(ref.Resource, "s.ephemeral-storage"):
		of = "local ephemeral storage"
	case isHugePageField(ref.Resource):
		of = "hugepages"
	default:
		return
	}
	if !slices.Contains(byteDivisors, divisor) {
		e.Invalid(at.Child("divisor"), ref.Resource,
			fmt.Sprintf("only divisor's values %s are supported with the %s resource", strings.Join(byteDivisors, ", "), of))
	}
}

func checkEnvFrom(e *validate.Errors, sources []corev1.EnvFromSource, path *field.Path) {
	for i := range sources {
		s, at, kinds := &sources[i], path.Index(i), 0
		if s.Prefix != "" {
			e.InvalidAll(at.Child("prefix"), s.Prefix, validation.IsRelaxedEnvVarName(s.Prefix))
		}
		if s.ConfigMapRef != nil {
			kinds++
			checkEnvFromName(e, s.ConfigMapRef.Name, at.Child("configMapRef", "name"))
		}
		if s.SecretRef != nil {
			kinds++
			checkEnvFromName(e, s.SecretRef.Name, at.Child("secretRef", "name"))
		}
		switch {
		case kinds == 0:
			e.Invalid(path, "", "must specify one of: `configMapRef` or `secretRef`")
		case kinds > 1:
			e.Invalid(path, "", "may not have more than one field specified at a time")
		}
	}
}

func checkEnvFromName(e *validate.Errors, name string, at *field.Path) {
	if name == "" {
		e.Required(at, "")
		return
	}
	e.InvalidAll(at, name, apivalidation.NameIsDNSSubdomain(name, true))
}
