package rest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metascheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"

	"hyperkube/components/apiserver/negotiate"
	"hyperkube/components/apiserver/registry"
	"hyperkube/components/apiserver/request"
	"hyperkube/internal/api"
	"hyperkube/internal/store"
)

// deleter handles deletions of single objects and of collections, for the request in call.
type deleter struct{ *call }

// deleteOptions parses and validates the delete options from the body, or from the query if there is no body. It
// returns a BadRequest error if they cannot be decoded and an Invalid error if they contradict each other.
func (c deleter) deleteOptions() (*metav1.DeleteOptions, error) {
	body, err := c.bodyDecoder().readBody()
	if err != nil {
		return nil, err
	}
	opts := &metav1.DeleteOptions{}
	if len(body) > 0 {
		media, err := negotiate.Body(c.req, true)
		if err != nil {
			return nil, err
		}
		// DeleteOptions may also have the version of the resource's group.
		var given schema.GroupVersionKind
		switch media {
		case negotiate.Protobuf:
			given, err = decodeProto(body, opts)
		case negotiate.YAML:
			given, _, err = decodeYAML(body, opts, metav1.FieldValidationIgnore)
		default:
			given, _, err = decodeJSON(body, opts, metav1.FieldValidationIgnore)
		}
		if err != nil || given.Kind != "" && given.Kind != "DeleteOptions" {
			if opts, err = decodeDeleteOptions(media, body); err != nil {
				return nil, apierrors.NewBadRequest(err.Error())
			}
		}
	} else if opts, err = request.DeleteOptions(c.query); err != nil {
		return nil, err
	}
	if err := request.CheckDeleteOptions(opts); err != nil {
		return nil, err
	}
	opts.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("DeleteOptions"))
	return opts, nil
}

// decodeDeleteOptions decodes delete options with the decoder of the Kubernetes libraries, which
// accepts other versions and returns upstream's errors. It is used only if the faster decoding has
// failed.
func decodeDeleteOptions(media negotiate.Media, body []byte) (*metav1.DeleteOptions, error) {
	info, ok := runtime.SerializerInfoForMediaType(metascheme.Codecs.SupportedMediaTypes(), media.String())
	if !ok {
		return nil, fmt.Errorf("no serializer for %s", media)
	}
	kind := metav1.SchemeGroupVersion.WithKind("DeleteOptions")
	opts := &metav1.DeleteOptions{}
	obj, _, err := metascheme.Codecs.DecoderToVersion(info.Serializer, kind.GroupVersion()).Decode(body, &kind, opts)
	if err != nil {
		return nil, err
	}
	if obj != runtime.Object(opts) {
		return nil, errors.New("decoded object cannot be converted to DeleteOptions")
	}
	return opts, nil
}

// delete handles a DELETE of one object. The response is the object if it still exists, for example because of
// finalizers. Otherwise it is a Status, or for some resources the deleted object.
func (c deleter) delete() error {
	format, err := c.format()
	if err != nil {
		return err
	}
	if c.name == "" {
		return c.notAllowed()
	}
	opts, err := c.deleteOptions()
	if err != nil {
		return err
	}
	c.warnDefault(opts)
	if unsafe(opts) {
		return c.deleteCorrupt(opts)
	}
	out, err := c.remove(c.name, opts)
	if err != nil {
		return err
	}
	code := http.StatusOK
	if !out.deleted && opts.OrphanDependents != nil && !*opts.OrphanDependents { //nolint:staticcheck // old clients still set it
		code = http.StatusAccepted
	}
	switch {
	case !out.deleted && out.entry != nil:
		return c.responder().sendEntry(format, code, out.entry)
	case !out.deleted || registry.ReturnsDeleted(c.res.GroupResource()):
		return c.responder().sendAPIObject(format, code, out.obj)
	}
	status := &metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusSuccess,
		Details: &metav1.StatusDetails{
			Name: out.obj.GetName(), Group: c.res.Group, Kind: c.res.Plural, UID: out.obj.GetUID(),
		},
	}
	plain, err := c.negotiator.Response(c.req, negotiate.Endpoint{Protobuf: true})
	if err != nil {
		plain = negotiate.Format{Media: format.Media, Pretty: format.Pretty}
	}
	return c.SendObject(c.w, c.req, plain, code, status)
}

// removed is the result of a deletion. If deleted is set, obj is the last state of the object.
// Otherwise the object still exists, and entry is its new state (obj on a dry run).
type removed struct {
	deleted bool
	entry   *store.Entry
	obj     api.Object
}

// remove deletes an object. If it has a grace period or finalizers, remove only sets its deletion timestamp. After a
// conflict, it tries again with the newest version, up to maxAttempts times. It returns a NotFound error if the
// object does not exist.
func (c deleter) remove(name string, opts *metav1.DeleteOptions) (removed, error) {
	key := c.res.Key(c.namespace, name)
	var entry *store.Entry
	if !dryRun(opts.DryRun) {
		// A dry run has no commit that would detect an outdated cache.
		entry = c.res.Collection.Cached(key)
	}
	fresh := false
	var err error
	var marked api.Object
	for range maxAttempts {
		if entry == nil {
			if fresh && marked != nil {
				// The kubelet has deleted the pod in the meantime, as requested.
				return removed{deleted: true, obj: marked}, nil
			}
			if fresh {
				return removed{}, apierrors.NewNotFound(c.res.GroupResource(), name)
			}
			if entry, err = c.newest(key); err != nil {
				return removed{}, err
			}
			fresh = true
			continue
		}
		var out removed
		// tryDelete modifies its options.
		if out, err = c.tryDelete(name, opts.DeepCopy(), entry); err == nil {
			return out, nil
		}
		if out.obj != nil {
			marked = out.obj
		}
		if cerr := c.ctx.Err(); cerr != nil {
			return removed{}, c.storeError(cerr, name)
		}
		var lost *store.ConflictError
		switch {
		case errors.As(err, &lost):
			if lost.Resource == c.res.StoredResource() && lost.Key == key {
				entry, fresh = lost.Current, true
			}
		case uncertain(err):
			return removed{}, c.storeError(err, name)
		case !fresh:
			newest, nerr := c.newest(key)
			if nerr != nil {
				return removed{}, nerr
			}
			fresh = true
			if revisionOf(newest) == revisionOf(entry) {
				return removed{}, c.storeError(err, name)
			}
			entry = newest
		default:
			return removed{}, c.storeError(err, name)
		}
	}
	return removed{}, c.storeError(err, name)
}

// tryDelete is one attempt of remove, based on entry. It checks preconditions and calls admission, unless the server
// deletes the object as part of an action. If it fails after it has stored a deletion timestamp, the result contains
// that state of the object.
func (c deleter) tryDelete(name string, opts *metav1.DeleteOptions, entry *store.Entry) (removed, error) {
	current, err := c.res.Read(entry)
	if err != nil {
		return removed{}, err
	}
	r := review{operation: admission.Delete, old: current, name: name, options: opts, dryRun: dryRun(opts.DryRun)}
	if c.info.Verb == "deletecollection" {
		r.name = "" // the request contains no name
	}
	if err := c.checkPreconditions(current, opts); err != nil {
		return removed{}, err
	}
	obj := current.DeepCopyObject().(api.Object)
	graceful, pending := c.grace(c.ctx, obj, opts)
	if pending {
		return removed{entry: entry, obj: current}, nil
	}
	if !c.byServer {
		if err := c.admitter().runMutating(c.ctx, r); err != nil {
			return removed{}, err
		}
		if err := c.admitter().runValidating(c.ctx, r); err != nil {
			return removed{}, err
		}
	}
	// BeforeDelete may have set the deletion timestamp itself. In that case the options are
	// ignored.
	own := !graceful && current.GetDeletionTimestamp() == nil && obj.GetDeletionTimestamp() != nil
	if want, changed := dependentFinalizers(c.res.Resource, obj, opts); changed && !own {
		obj.SetFinalizers(want)
	}
	blocked := len(obj.GetFinalizers()) > 0 || c.res.Retain != nil && c.res.Retain(obj)
	stay := blocked || graceful && opts.GracePeriodSeconds != nil && *opts.GracePeriodSeconds > 0
	if !graceful && blocked && !own {
		markDeleting(obj)
	}
	if stay {
		return c.committer().tryMark(r, entry, obj, current)
	}
	var marked api.Object
	if graceful && !r.dryRun && !c.deletedByNode() {
		first, err := c.committer().tryMark(r, entry, obj, current)
		if err != nil {
			return removed{}, err
		}
		entry = first.entry
		if current, err = c.res.Read(entry); err != nil {
			return removed{}, err
		}
		marked, obj = current, current.DeepCopyObject().(api.Object)
	}
	if !graceful {
		// The response to an immediate deletion contains the stored object, including finalizers
		// that the options remove.
		obj = current.DeepCopyObject().(api.Object)
	}
	out, err := c.committer().tryRemove(r, entry, obj, current)
	if err != nil {
		return removed{obj: marked}, err
	}
	return removed{deleted: true, obj: out.obj}, nil
}

// deletedByNode reports whether the client is a kubelet, which deletes a pod after its containers
// have terminated. For other clients, an immediate deletion first sets the deletion timestamp in a
// separate write. Without it, the kubelet would not know that the grace period is zero, and would
// use the pod's own grace period.
func (c deleter) deletedByNode() bool {
	u, ok := apirequest.UserFrom(c.ctx)
	return ok && slices.Contains(u.GetGroups(), user.NodesGroup)
}

// preconditionMessage is upstream's message for unmet preconditions on custom resource definitions and, with
// a capital letter, on namespaces.
const preconditionMessage = "recondition failed: %[1]s in precondition: %[2]s, %[1]s in object meta: %[3]s"

// checkPreconditions returns a conflict if the UID or resource version of obj is not the one that the delete options
// require. It returns nil if they require none.
func (c deleter) checkPreconditions(obj api.Object, opts *metav1.DeleteOptions) error {
	if opts.Preconditions == nil {
		return nil
	}
	kind := invalidKind(c.res)
	gr, uidWords, versionWords := schema.GroupResource{Group: kind.Group, Resource: kind.Kind},
		"the %s in the precondition (%s) does not match the UID in record (%s). The object might have been deleted and then recreated",
		"the %s in the precondition (%s) does not match the ResourceVersion in record (%s). The object might have been modified"
	switch {
	case c.res.Group == apiextensionsv1.GroupName:
		gr, uidWords, versionWords = c.res.GroupResource(), "p"+preconditionMessage, "p"+preconditionMessage
	case c.res.Group == "" && c.res.Plural == "namespaces":
		gr, uidWords, versionWords = c.res.GroupResource(), "P"+preconditionMessage, "P"+preconditionMessage
	}
	if uid := opts.Preconditions.UID; uid != nil && *uid != obj.GetUID() {
		return apierrors.NewConflict(gr, obj.GetName(), fmt.Errorf(uidWords, "UID", *uid, obj.GetUID()))
	}
	if v := opts.Preconditions.ResourceVersion; v != nil && *v != obj.GetResourceVersion() {
		return apierrors.NewConflict(gr, obj.GetName(), fmt.Errorf(versionWords, "ResourceVersion", *v, obj.GetResourceVersion()))
	}
	return nil
}

// grace determines the grace period from the options and sets it, with the deletion timestamp, in obj. graceful means
// that it has done so. pending means that obj is already being deleted and needs no change, because a grace period
// can only be shortened. Both are false for resources without grace periods, and if the deletion can be completed
// immediately.
func (c deleter) grace(ctx context.Context, obj api.Object, opts *metav1.DeleteOptions) (graceful, pending bool) {
	if g := opts.GracePeriodSeconds; g != nil && *g < 0 {
		opts.GracePeriodSeconds = new(int64)
		*opts.GracePeriodSeconds = 1
	}
	if c.res.BeforeDelete == nil {
		return false, false
	}
	if deleted := obj.GetDeletionTimestamp(); deleted != nil {
		if c.res.Retain != nil && c.res.Retain(obj) {
			return false, true
		}
		had := obj.GetDeletionGracePeriodSeconds()
		if had == nil || *had == 0 {
			// The previous deletion was not completed.
			opts.GracePeriodSeconds = new(int64)
			return false, false
		}
		wish := opts.GracePeriodSeconds
		if wish == nil || *wish >= *had {
			return false, true // it can only be shortened
		}
		sooner := metav1.NewTime(deleted.Add(-time.Second * time.Duration(*had)).Add(time.Second * time.Duration(*wish)))
		obj.SetDeletionTimestamp(&sooner)
		period := *wish
		obj.SetDeletionGracePeriodSeconds(&period)
		return true, false
	}
	if !c.res.BeforeDelete(ctx, obj, opts) {
		return false, false
	}
	period := int64(0)
	// Retained objects stay until other components are done with them, regardless of the grace
	// period.
	if opts.GracePeriodSeconds != nil && (c.res.Retain == nil || !c.res.Retain(obj)) {
		period = *opts.GracePeriodSeconds
		obj.SetDeletionGracePeriodSeconds(&period)
	}
	at := metav1.NewTime(time.Now().Truncate(time.Second).Add(time.Second * time.Duration(period)))
	obj.SetDeletionTimestamp(&at)
	if g := obj.GetGeneration(); g > 0 {
		obj.SetGeneration(g + 1)
	}
	return true, false
}

// markDeleting sets the deletion timestamp of obj to now, unless it has an earlier one, and its
// grace period to zero. The object remains only because of its finalizers.
func markDeleting(obj api.Object) {
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	if obj.GetDeletionTimestamp() == nil {
		if g := obj.GetGeneration(); g > 0 {
			obj.SetGeneration(g + 1)
		}
	}
	if t := obj.GetDeletionTimestamp(); t == nil || t.After(now.Time) {
		obj.SetDeletionTimestamp(&now)
	}
	obj.SetDeletionGracePeriodSeconds(new(int64))
}

// dependentFinalizers returns the finalizers of obj with which the garbage collector orphans the dependents, or
// deletes them first, as the propagation policy of opts, else the finalizers of obj, else the default of the resource
// requires. It returns false if obj has the right finalizers already.
//
// https://kubernetes.io/docs/concepts/architecture/garbage-collection/
func dependentFinalizers(res *api.Resource, obj api.Object, opts *metav1.DeleteOptions) ([]string, bool) {
	has := func(name string) bool { return slices.Contains(obj.GetFinalizers(), name) }
	orphan, foreground := false, false
	switch {
	case opts.OrphanDependents != nil: //nolint:staticcheck // old clients still set it
		orphan = *opts.OrphanDependents //nolint:staticcheck
	case opts.PropagationPolicy != nil:
		orphan = *opts.PropagationPolicy == metav1.DeletePropagationOrphan
		foreground = *opts.PropagationPolicy == metav1.DeletePropagationForeground
	case has(metav1.FinalizerOrphanDependents):
		orphan = true
	case has(metav1.FinalizerDeleteDependents):
		foreground = true
	default:
		orphan = res.DefaultPropagation == metav1.DeletePropagationOrphan
		foreground = res.DefaultPropagation == metav1.DeletePropagationForeground
	}
	if orphan == has(metav1.FinalizerOrphanDependents) && foreground == has(metav1.FinalizerDeleteDependents) {
		return nil, false
	}
	want := slices.DeleteFunc(slices.Clone(obj.GetFinalizers()), func(f string) bool {
		return f == metav1.FinalizerOrphanDependents || f == metav1.FinalizerDeleteDependents
	})
	if orphan {
		want = append(want, metav1.FinalizerOrphanDependents)
	}
	if foreground {
		want = append(want, metav1.FinalizerDeleteDependents)
	}
	return want, true
}

// warnDefault adds the resource's warning about the default propagation policy, which may be unexpected, to the
// response if the options contain no policy. Most resources have no such warning.
func (c deleter) warnDefault(opts *metav1.DeleteOptions) {
	if c.res.DeleteWarning != "" && opts.PropagationPolicy == nil && opts.OrphanDependents == nil { //nolint:staticcheck // old clients still set it
		warning.AddWarning(c.ctx, "", c.res.DeleteWarning)
	}
}
