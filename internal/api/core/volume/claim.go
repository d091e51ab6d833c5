package volume

import (
	"fmt"
	"reflect"
	"slices"
	"unicode"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
	"hyperkube/internal/api/validate"
)

// ClaimTemplate validates the claim template of an ephemeral volume and adds the errors to e. at is the field path of
// the validated value.
func ClaimTemplate(e *validate.Errors, t *corev1.PersistentVolumeClaimTemplate, at *field.Path) {
	meta := at.Child("metadata")
	e.Add(apivalidation.ValidateAnnotations(t.Annotations, meta.Child("annotations")))
	e.Add(metavalidation.ValidateLabels(t.Labels, meta.Child("labels")))
	OnlyFields(e, t.ObjectMeta, "cannot be set", meta, "Annotations", "Labels")
	ClaimSpec(e, &t.Spec, at.Child("spec"))
}

// OnlyFields adds an error with detail for each field of the struct value that is set, unless its
// Go name is in allowed.
func OnlyFields(e *validate.Errors, value any, detail string, at *field.Path, allowed ...string) {
	v := reflect.ValueOf(value)
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		if v.Field(i).IsZero() || slices.Contains(allowed, name) {
			continue
		}
		first, n := utf8.DecodeRuneInString(name)
		e.Forbidden(at.Child(string(unicode.ToLower(first))+name[n:]), detail)
	}
}

// ClaimSpec validates the spec of a PersistentVolumeClaim and adds the errors to e. at is the field path of the
// validated value.
func ClaimSpec(e *validate.Errors, spec *corev1.PersistentVolumeClaimSpec, at *field.Path) {
	if len(spec.AccessModes) == 0 {
		e.Required(at.Child("accessModes"), "at least 1 access mode is required")
	}
	if spec.Selector != nil {
		e.Add(metavalidation.ValidateLabelSelector(spec.Selector, metavalidation.LabelSelectorValidationOptions{}, at.Child("selector")))
	}
	accessModes(e, spec.AccessModes, at.Child("accessModes"))
	size, ok := spec.Resources.Requests[corev1.ResourceStorage]
	sizePath := at.Child("resources").Key(string(corev1.ResourceStorage))
	switch {
	case !ok:
		e.Required(sizePath, "")
	default:
		e.PositiveQuantity(sizePath, size)
	}
	if spec.StorageClassName != nil && *spec.StorageClassName != "" {
		e.Subdomain(at.Child("storageClassName"), *spec.StorageClassName)
	}
	volumeMode(e, spec.VolumeMode, at)
	dataSources(e, spec, at)
	if spec.VolumeAttributesClassName != nil && *spec.VolumeAttributesClassName != "" {
		e.Subdomain(at.Child("volumeAttributesClassName"), *spec.VolumeAttributesClassName)
	}
}

// accessModes validates access modes. ReadWriteOncePod excludes all others.
func accessModes(e *validate.Errors, modes []corev1.PersistentVolumeAccessMode, at *field.Path) {
	once, other := false, false
	for _, mode := range modes {
		validate.OneOf(e, at, mode, corev1.ReadOnlyMany, corev1.ReadWriteMany, corev1.ReadWriteOnce, corev1.ReadWriteOncePod)
		switch mode {
		case corev1.ReadWriteOncePod:
			once = true
		case corev1.ReadOnlyMany, corev1.ReadWriteMany, corev1.ReadWriteOnce:
			other = true
		}
	}
	if once && other {
		e.Forbidden(at, "may not use ReadWriteOncePod with other access modes")
	}
}

func volumeMode(e *validate.Errors, mode *corev1.PersistentVolumeMode, at *field.Path) {
	if mode != nil {
		validate.OneOf(e, at.Child("volumeMode"), *mode, corev1.PersistentVolumeBlock, corev1.PersistentVolumeFilesystem)
	}
}

// dataSources validates dataSource and dataSourceRef, which must be equal if both are set, unless dataSourceRef names
// another namespace.
func dataSources(e *validate.Errors, spec *corev1.PersistentVolumeClaimSpec, at *field.Path) {
	src, ref := spec.DataSource, spec.DataSourceRef
	if src != nil {
		dataSource(e, src.APIGroup, src.Kind, src.Name, at.Child("dataSource"))
	}
	if ref == nil {
		return
	}
	dataSource(e, ref.APIGroup, ref.Kind, ref.Name, at.Child("dataSourceRef"))
	foreign := ref.Namespace != nil && *ref.Namespace != ""
	if foreign {
		e.InvalidAll(at.Child("dataSourceRef", "namespace"), *ref.Namespace, apivalidation.ValidateNamespaceName(*ref.Namespace, false))
	}
	switch {
	case src == nil:
	case foreign:
		e.Invalid(at, at.Child("dataSource"), "may not be specified when dataSourceRef.namespace is specified")
	case !reflect.DeepEqual(src.APIGroup, ref.APIGroup) || src.Kind != ref.Kind || src.Name != ref.Name:
		e.Invalid(at, at.Child("dataSource"), "must match dataSourceRef")
	}
}

// dataSource validates a reference to a data source. In the core group, only a PersistentVolumeClaim is allowed.
func dataSource(e *validate.Errors, group *string, kind, name string, at *field.Path) {
	requireAll(e, at, "name", name, "kind", kind)
	if group == nil || *group == "" {
		if kind != "PersistentVolumeClaim" {
			e.Invalid(at, kind, "must be 'PersistentVolumeClaim' when referencing the default apiGroup")
		}
		return
	}
	e.Subdomain(at.Child("apiGroup"), *group)
}

// DefaultClaimSpec sets the volume mode of a claim to Filesystem if it is not set, and rounds the requested sizes up.
func DefaultClaimSpec(spec *corev1.PersistentVolumeClaimSpec) {
	api.SetDefault(&spec.VolumeMode, corev1.PersistentVolumeFilesystem)
	validate.RoundUp(spec.Resources.Limits)
	validate.RoundUp(spec.Resources.Requests)
}

// PrepareDataSources drops unsupported data sources, and sets dataSource and dataSourceRef to the
// same value if only one of them is set and both can represent it. old is the spec of the stored
// claim, nil on create.
func PrepareDataSources(spec, old *corev1.PersistentVolumeClaimSpec) {
	// Cross-namespace data sources are a disabled feature.
	if ref := spec.DataSourceRef; ref != nil && ref.Namespace != nil && *ref.Namespace != "" && (old == nil || old.DataSourceRef == nil) {
		spec.DataSourceRef = nil
	}
	// For compatibility, unknown kinds in dataSource are ignored.
	if (old == nil || old.DataSource == nil && old.DataSourceRef == nil) && spec.DataSourceRef == nil && !isClaimOrSnapshot(spec.DataSource) {
		spec.DataSource = nil
	}
	NormalizeDataSources(spec)
}

// isClaimOrSnapshot reports whether a data source is a PersistentVolumeClaim or a VolumeSnapshot. It returns false for
// nil.
func isClaimOrSnapshot(src *corev1.TypedLocalObjectReference) bool {
	if src == nil {
		return false
	}
	group := ""
	if src.APIGroup != nil {
		group = *src.APIGroup
	}
	return src.Kind == "PersistentVolumeClaim" && group == "" || src.Kind == "VolumeSnapshot" && group == "snapshot.storage.k8s.io"
}

// NormalizeDataSources sets dataSource and dataSourceRef to the same value if only one of them is
// set and both can represent it: dataSource cannot refer to another namespace.
func NormalizeDataSources(spec *corev1.PersistentVolumeClaimSpec) {
	switch src, ref := spec.DataSource, spec.DataSourceRef; {
	case src != nil && ref == nil:
		spec.DataSourceRef = &corev1.TypedObjectReference{APIGroup: copied(src.APIGroup), Kind: src.Kind, Name: src.Name}
	case ref != nil && src == nil && (ref.Namespace == nil || *ref.Namespace == ""):
		spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: copied(ref.APIGroup), Kind: ref.Kind, Name: ref.Name}
	}
}

// copied returns a pointer to a copy of the string, or nil.
func copied(s *string) *string {
	if s == nil {
		return nil
	}
	v := *s
	return &v
}

// ClaimSpecWarnings returns the warnings that a client gets for the valid spec of a claim, whose field path is at.
func ClaimSpecWarnings(spec *corev1.PersistentVolumeClaimSpec, at *field.Path) []string {
	var out []string
	for _, list := range []struct {
		name string
		corev1.ResourceList
	}{{"requests", spec.Resources.Requests}, {"limits", spec.Resources.Limits}} {
		if size := list.ResourceList[corev1.ResourceStorage]; size.MilliValue()%1000 != 0 {
			out = append(out, fmt.Sprintf("%s: fractional byte value %q is invalid, must be an integer",
				at.Child(list.name).Key(string(corev1.ResourceStorage)), size.String()))
		}
	}
	return out
}
