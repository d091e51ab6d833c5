package openapi

import (
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// documented is a Go type with descriptions of its fields, which are generated.
type documented interface{ SwaggerDoc() map[string]string }

// queryParameters returns the fields of an options type as query parameters, without those in but
// and without fields that are objects.
func queryParameters(options documented, but ...string) []parameter {
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

// kindOf returns the OpenAPI name of a Go type, such as "integer". It returns "" for types that are
// not allowed in a query.
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
	listQuery   = queryParameters(metav1.ListOptions{})
	deleteQuery = queryParameters(metav1.DeleteOptions{})
	createQuery = queryParameters(metav1.CreateOptions{})
	updateQuery = queryParameters(metav1.UpdateOptions{})
	patchQuery  = queryParameters(metav1.PatchOptions{})
	getQuery    = queryParameters(metav1.GetOptions{})

	pretty = parameter{
		"pretty", "query", "string",
		"If 'true', then the output is pretty printed. Defaults to 'false' unless the user-agent indicates a browser or command-line HTTP tool (curl and wget).",
	}
	namespaceParameter = parameter{"namespace", "path", "string", "object name and auth scope, such as for teams and projects"}
	pathParameter      = parameter{"path", "path", "string", "path to the resource"}
)

// deleteCollectionQuery returns the query parameters of deletecollection for built-in kinds: those
// of delete and of list.
func deleteCollectionQuery() []parameter {
	return slices.Concat(deleteQuery, queryParameters(metav1.ListOptions{}, "watch", "allowWatchBookmarks"))
}

// streamQuery returns the query parameters of a streaming subresource. kind is the kind of its options, such as
// "PodExecOptions". It returns none for kinds that have no options.
func streamQuery(kind string) []parameter {
	switch kind {
	case "PodExecOptions":
		return queryParameters(corev1.PodExecOptions{})
	case "PodAttachOptions":
		return queryParameters(corev1.PodAttachOptions{})
	case "PodPortForwardOptions":
		return queryParameters(corev1.PodPortForwardOptions{})
	case "PodProxyOptions":
		return queryParameters(corev1.PodProxyOptions{})
	case "ServiceProxyOptions":
		return queryParameters(corev1.ServiceProxyOptions{})
	case "NodeProxyOptions":
		return queryParameters(corev1.NodeProxyOptions{})
	}
	return nil
}
