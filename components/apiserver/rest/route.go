package rest

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation/path"
)

// router finds the handler of a request: it checks path and method, and calls the handler of the
// verb or subresource.
type router struct{ *call }

// route returns an error if the path of a built-in resource does not exist (404) or does not support the method
// (405). It runs before the name of the object is validated. Paths with names do not exist for resources that can
// only be created, nor without the namespace of a namespaced resource. HEAD is only supported by proxies. It returns
// nil for custom resources.
func (c router) route() error {
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

// routeSubresource is route for paths of subresources. It returns nil for subresources that handle HTTP themselves,
// which check their paths and methods.
func (c router) routeSubresource() error {
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

// checkPathName returns a BadRequest error if the object name in the path contains characters that
// no object name can contain.
func (c *call) checkPathName() error {
	if len(c.info.Parts) < 2 {
		return nil
	}
	if msgs := path.IsValidPathSegmentName(c.name); len(msgs) > 0 {
		return apierrors.NewBadRequest(fmt.Sprintf("Name parameter invalid: %q: %s", c.name, strings.Join(msgs, ";")))
	}
	return nil
}

// dispatch handles the request: it calls the reader, lister, creator and so on for the request's verb or subresource.
// It returns an error without having responded if the name is invalid or the verb is not supported.
func (c router) dispatch() error {
	if c.info.Verb != "update" { // decodeUpdate checks the name
		if err := c.checkPathName(); err != nil {
			return err
		}
	}
	if len(c.info.Parts) > 2 {
		if s := c.res.Stream(c.info.Subresource); s != nil {
			return c.actor().stream(s)
		}
	}
	if c.info.Subresource != "" {
		if len(c.info.Parts) > 3 {
			return errNoRoute
		}
		return c.subresource()
	}
	verb := c.info.Verb
	if c.res.Review {
		a := c.res.Action("")
		if a == nil || verb != "create" {
			return c.notAllowed()
		}
		return c.actor().action(a)
	}
	if !slices.Contains(c.res.Verbs, verb) {
		if verb == "watch" && c.res.Computed() != nil {
			return apierrors.NewMethodNotSupported(c.res.GroupResource(), verb)
		}
		return c.notAllowed()
	}
	namespaced := bool(c.res.Scope) && c.namespace == ""
	switch verb {
	case "list":
		return c.lister().list()
	case "watch":
		return c.watchServer().watch()
	}
	if namespaced {
		// An object, a create or a deletecollection of a namespaced resource without a namespace.
		return c.notAllowed()
	}
	switch verb {
	case "get":
		return c.reader().get()
	case "create":
		if len(c.info.Parts) > 1 {
			return c.notAllowed()
		}
		return c.creator().create()
	case "update":
		if c.name == "" {
			return c.notAllowed()
		}
		return c.changer().update("", &c.res.Update)
	case "patch":
		if c.name == "" {
			return c.notAllowed()
		}
		return c.changer().patch("", &c.res.Update)
	case "delete":
		return c.deleter().delete()
	case "deletecollection":
		return c.deleter().deleteCollection()
	}
	return c.notAllowed()
}

// subresource calls the handler of a subresource other than a stream: a view such as status, scale,
// or an action such as eviction.
func (c router) subresource() error {
	if c.name == "" {
		return errNoRoute
	}
	name := c.info.Subresource
	verb := c.info.Verb
	if v, ok := c.res.Views[name]; ok {
		if !slices.Contains(v.Verbs, verb) {
			return c.notAllowed()
		}
		switch verb {
		case "get":
			return c.reader().get()
		case "update":
			return c.changer().update(name, &v)
		case "patch":
			return c.changer().patch(name, &v)
		}
		return c.notAllowed()
	}
	if name == "scale" && c.res.Scale != nil {
		return c.scaler().scale()
	}
	if a := c.res.Action(name); a != nil {
		if verb != "create" {
			return c.notAllowed()
		}
		return c.actor().action(a)
	}
	if c.res.Custom != nil {
		return apierrors.NewNotFound(c.res.GroupResource(), c.name)
	}
	return errNoRoute
}

// notAllowed returns the error 405 for a verb that the resource does not support, or 400 for a write of a custom
// resource without a name.
func (c *call) notAllowed() error {
	if c.res.Custom != nil {
		if c.name == "" && (c.info.Verb == "update" || c.info.Verb == "patch") {
			return apierrors.NewBadRequest("name must be provided")
		}
		return apierrors.NewMethodNotSupported(c.res.GroupResource(), c.info.Verb)
	}
	return errNoMethod
}
