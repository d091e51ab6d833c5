package api

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Column defines a column that kubectl get always shows for a kind. typ is the OpenAPI type of the
// cells: "string", "integer" or "boolean". The column has no format.
func Column(name, typ, description string) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: name, Type: typ, Description: description}
}

// WideColumn defines a column like Column, but kubectl get shows it only with -o wide.
func WideColumn(name, typ, description string) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: name, Type: typ, Description: description, Priority: 1}
}

// Columns that kubectl get -o wide shows for kinds with a pod template, such as Deployments. Their
// cells are the results of Containers.
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

// CreatedAtRow returns the cells of an object for CreatedAtColumns: the name and the creation time
// in UTC.
func CreatedAtRow(obj metav1.Object) []any {
	return []any{obj.GetName(), obj.GetCreationTimestamp().UTC().Format(time.RFC3339)}
}

// Containers returns the names and the images of a pod's containers, each joined with commas. They
// are the cells of ContainersColumn and ImagesColumn. Init and ephemeral containers are omitted.
func Containers(spec *corev1.PodSpec) (names, images string) {
	n := make([]string, len(spec.Containers))
	i := make([]string, len(spec.Containers))
	for at := range spec.Containers {
		n[at], i[at] = spec.Containers[at].Name, spec.Containers[at].Image
	}
	return strings.Join(n, ","), strings.Join(i, ",")
}
