package openapi

import (
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// documented are the types that tell what their fields are for.
type documented interface{ SwaggerDoc() map[string]string }

// queryOf are the fields of options as parameters of a query, but for those that
// are left out. Fields that are objects cannot be.
func queryOf(options documented, but ...string) []parameter {
	texts := options.SwaggerDoc()
	var out []parameter
	t := reflect.TypeOf(options)
	for i := range t.NumField() {
		field := t.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		kind := kindOf(field.Type)
		if name == "" || kind == "" || slices.Contains(but, name) {
			continue
		}
		out = append(out, parameter{name, "query", kind, texts[name]})
	}
	return out
}

// kindOf is what OpenAPI calls a type; "" for those that a query cannot have.
func kindOf(t reflect.Type) string {
	if t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.Bool:
		return "boolean"
	case reflect.Int, reflect.Int32, reflect.Int64:
		return "integer"
	case reflect.String:
		return "string"
	}
	return ""
}

var (
	listQuery   = queryOf(metav1.ListOptions{})
	deleteQuery = queryOf(metav1.DeleteOptions{})
	createQuery = queryOf(metav1.CreateOptions{})
	updateQuery = queryOf(metav1.UpdateOptions{})
	patchQuery  = queryOf(metav1.PatchOptions{})
	getQuery    = queryOf(metav1.GetOptions{})

	pretty = parameter{
		"pretty", "query", "string",
		"If 'true', then the output is pretty printed. Defaults to 'false' unless the user-agent indicates a browser or command-line HTTP tool (curl and wget).",
	}
	namespaceParameter = parameter{"namespace", "path", "string", "object name and auth scope, such as for teams and projects"}
	pathParameter      = parameter{"path", "path", "string", "path to the resource"}
)

// deleteCollectionQuery is of deletions of built-in kinds.
func deleteCollectionQuery() []parameter {
	return slices.Concat(deleteQuery, queryOf(metav1.ListOptions{}, "watch", "allowWatchBookmarks"))
}

// streamQuery are the options of a stream whose options are of that kind.
func streamQuery(kind string) []parameter {
	switch kind {
	case "PodExecOptions":
		return queryOf(corev1.PodExecOptions{})
	case "PodAttachOptions":
		return queryOf(corev1.PodAttachOptions{})
	case "PodPortForwardOptions":
		return queryOf(corev1.PodPortForwardOptions{})
	case "PodProxyOptions":
		return queryOf(corev1.PodProxyOptions{})
	case "ServiceProxyOptions":
		return queryOf(corev1.ServiceProxyOptions{})
	case "NodeProxyOptions":
		return queryOf(corev1.NodeProxyOptions{})
	}
	return nil
}
