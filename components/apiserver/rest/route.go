package rest

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation/path"
)

// route checks whether the path of a built-in resource exists and supports the method. There are no
// paths with names for resources that can only be created, or with names but without the namespace,
// and HEAD is only supported by proxies. It checks subresources before the name of the object is
// validated.
func (c *call) route() error {
	if c.res.Custom != nil {
		return nil
	}
	verb, parts := c.info.Verb, len(c.info.Parts)
	created := !slices.Contains(c.res.Verbs, "get") && slices.Contains(c.res.Verbs, "create")
	homeless := bool(c.res.Scope) && c.namespace == ""
	nested := c.res.Plural == "namespaces" && c.res.Group == "" && c.info.Namespace != "" && (parts == 1 || c.info.Parts[1] != c.info.Namespace)
	if verb == "proxy" || nested || homeless && (created || parts > 1) || created && parts > 1 {
		return errNoRoute
	}
	switch {
	case parts > 2:
		return c.routeSubresource()
	case verb == "watch":
		// Watches by path: /api/v1/watch/…
		if c.req.Method != http.MethodGet {
			return errNoMethod
		}
		return nil
	case c.req.Method == http.MethodHead, !slices.Contains(c.res.Verbs, verb), parts > 1 && verb == "create", homeless && verb != "list":
		return errNoMethod
	case parts == 1 && (verb == "update" || verb == "patch"):
		return errNoMethod
	}
	return nil
}

// routeSubresource is route for subresources. Streams check their paths and methods themselves.
func (c *call) routeSubresource() error {
	name := c.info.Subresource
	if c.res.Stream(name) != nil {
		return nil
	}
	_, view := c.res.Views[name]
	scale := name == "scale" && c.res.Scale != nil
	switch {
	case len(c.info.Parts) > 3, !view && !scale && c.res.Action(name) == nil:
		return errNoRoute
	case c.req.Method == http.MethodHead:
		return errNoMethod
	}
	return nil
}

// checkPathName rejects names that are not valid path segments, for requests that read objects by
// name.
func (c *call) checkPathName() error {
	if len(c.info.Parts) < 2 {
		return nil
	}
	if msgs := path.IsValidPathSegmentName(c.name); len(msgs) > 0 {
		return apierrors.NewBadRequest(fmt.Sprintf("Name parameter invalid: %q: %s", c.name, strings.Join(msgs, ";")))
	}
	return nil
}
