// Package request parses requests: the path into verb, group, version, namespace, resource, name
// and subresource, and the query into options. The result for a path is a Kubernetes RequestInfo,
// which is in the context of every request because authorization, admission and audit read it
// there.
package request

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"k8s.io/apimachinery/pkg/api/validation/path"
	"k8s.io/apimachinery/pkg/fields"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// ErrPath is the error of Parse for a deprecated path such as /api/v1/watch that does not contain a
// resource.
var ErrPath = errors.New("unable to determine kind and namespace from url")

// namespaceViews are the subresources of namespaces. Any other path element after a namespace's
// name is a resource in the namespace.
var namespaceViews = map[string]bool{"status": true, "finalize": true}

// Parse returns the RequestInfo for the method, path and query of a request. A GET without a name is a list or, with
// the parameter watch, a watch; a DELETE without a name deletes a collection. Paths outside of API resources are not
// an error; their RequestInfo has IsResourceRequest false. With the error ErrPath, the result contains what could be
// parsed.
func Parse(method string, u *url.URL, query url.Values) (*apirequest.RequestInfo, error) {
	info := &apirequest.RequestInfo{Path: u.Path, Verb: strings.ToLower(method)}
	parts := split(u.Path)
	if len(parts) < 3 {
		return info, nil
	}
	switch parts[0] {
	case "api":
		info.APIPrefix = "api"
		parts = parts[1:]
	case "apis":
		if len(parts) < 4 {
			return info, nil
		}
		info.APIPrefix, info.APIGroup = "apis", parts[1]
		parts = parts[2:]
	default:
		return info, nil
	}
	info.IsResourceRequest = true
	info.APIVersion, parts = parts[0], parts[1:]

	byPath := parts[0] == "watch" || parts[0] == "proxy"
	switch {
	case byPath:
		// The deprecated forms /api/v1/watch/pods and /api/v1/proxy/….
		if len(parts) < 2 {
			return info, fmt.Errorf("%w, %s", ErrPath, u.Path)
		}
		info.Verb, parts = parts[0], parts[1:]
	default:
		info.Verb = verbs[method]
	}

	if parts[0] == "namespaces" && len(parts) > 1 {
		info.Namespace = parts[1]
		if len(parts) > 2 && !namespaceViews[parts[2]] {
			parts = parts[2:]
		}
	}
	info.Parts = parts
	info.Resource = parts[0]
	if len(parts) >= 2 {
		info.Name = parts[1]
	}
	if len(parts) >= 3 && info.Verb != "proxy" {
		info.Subresource = parts[2]
	}

	if byPath {
		// Not all of these forms support selectors, so they are not authorized by selector.
		return info, nil
	}
	// A GET that selects a single object by name gets that name, so that a role can grant it. A
	// DELETE does not: it deletes a collection, regardless of selectors.
	if info.Name == "" {
		switch info.Verb {
		case "get":
			info.Verb = "list"
			if IsTrue(query, "watch") {
				info.Verb = "watch"
			}
			if s := query.Get("fieldSelector"); s != "" {
				info.Name = selectedName(s)
			}
		case "delete":
			info.Verb = "deletecollection"
		}
	}
	switch info.Verb {
	case "list", "watch", "deletecollection":
		info.FieldSelector = query.Get("fieldSelector")
		info.LabelSelector = query.Get("labelSelector")
	}
	return info, nil
}

var verbs = map[string]string{
	http.MethodPost:   "create",
	http.MethodGet:    "get",
	http.MethodHead:   "get",
	http.MethodPut:    "update",
	http.MethodPatch:  "patch",
	http.MethodDelete: "delete",
}

// split returns the elements of a path, ignoring leading and trailing slashes.
func split(p string) []string {
	p = strings.Trim(p, "/")
	if p == "" {
		return nil
	}
	return strings.Split(p, "/")
}

// selectedName returns the name that a field selector requires by metadata.name, or "" if it requires none, or is
// invalid. With the name in RequestInfo, a role can grant "list" of a single object.
func selectedName(selector string) string {
	if !strings.Contains(selector, "metadata.name") {
		return ""
	}
	s, err := fields.ParseSelector(selector)
	if err != nil {
		return ""
	}
	name, ok := s.RequiresExactMatch("metadata.name")
	if !ok || len(path.IsValidPathSegmentName(name)) > 0 {
		return ""
	}
	return name
}

// IsTrue returns the value of a boolean query parameter as Kubernetes parses it: it is true unless
// it is "false", "0" or missing.
func IsTrue(query url.Values, name string) bool {
	values, ok := query[name]
	if !ok || len(values) == 0 {
		return false
	}
	switch strings.ToLower(values[0]) {
	case "false", "0":
		return false
	}
	return true
}

// LongRunning reports whether a request has no deadline because it may take arbitrarily long: watches, streams such
// as exec and logs, proxied requests and profiles.
func LongRunning(info *apirequest.RequestInfo) bool {
	if !info.IsResourceRequest {
		return strings.HasPrefix(info.Path, "/debug/pprof/")
	}
	switch info.Verb {
	case "watch", "proxy":
		return true
	}
	switch info.Subresource {
	case "attach", "exec", "proxy", "log", "portforward":
		return true
	}
	return false
}
