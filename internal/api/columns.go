package api

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Column returns a table column without a format. typ is "string", "integer" or "boolean".
func Column(name, typ, description string) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: name, Type: typ, Description: description}
}

// WideColumn returns a column that kubectl only shows with -o wide.
func WideColumn(name, typ, description string) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: name, Type: typ, Description: description, Priority: 1}
}

// The wide columns of kinds with a pod template. Containers returns their cells.
var (
	ContainersColumn = WideColumn("Containers", "string", "Names of each container in the template.")
	ImagesColumn     = WideColumn("Images", "string", "Images referenced by each container in the template.")
)

// CreatedAtColumns are the columns of kinds that upstream prints with the creation time instead of
// the age. CreatedAtRow returns their rows.
var CreatedAtColumns = []metav1.TableColumnDefinition{
	NameColumn,
	{Name: "Created At", Type: "date", Description: metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"]},
}

// CreatedAtRow returns the row for CreatedAtColumns.
func CreatedAtRow(obj metav1.Object) []any {
	return []any{obj.GetName(), obj.GetCreationTimestamp().UTC().Format(time.RFC3339)}
}

// Containers returns the names and images of a pod's containers for tables.
func Containers(spec *corev1.PodSpec) (names, images string) {
	n := make([]string, len(spec.Containers))
	i := make([]string, len(spec.Containers))
	for at := range spec.Containers {
		n[at], i[at] = spec.Containers[at].Name, spec.Containers[at].Image
	}
	return strings.Join(n, ","), strings.Join(i, ",")
}
