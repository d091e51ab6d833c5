package manifestdir

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"hyperkube/components/cluster/applyset"
	"hyperkube/internal/base/lifecycle"
)

// Label is the label of the ConfigMaps that represent the files and kustomizations of the directory. #skip
// dataDirectory =
const Label = "hyperkube.io/manifest"

// Keys of the data of the ConfigMap that is the parent of a file's set of objects.
const (
	dataDirectory = "directory"
	dataFile      = "file"
	dataError     = "error"
)

// Problem returns the last error in the data of the ConfigMap of a manifest, with the name of its file, or "" if there
// is none.
func Problem(data map[string]string) string {
	if data[dataError] == "" {
		return ""
	}
	return "manifest " + data[dataFile] + ": " + data[dataError]
}

// setOf returns the ApplySet of a file or kustomization. The name of its parent contains the name of the file, for
// readers, and a hash of it. It does not depend on the path of the directory, so a directory that is moved keeps its
// sets.
func setOf(dir, name string) applyset.Set {
	sum := sha256.Sum256([]byte(name))
	readable := strings.Trim(strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(name)), "-")
	return applyset.Set{
		Name:   fmt.Sprintf("hyperkube-manifest-%.40s-%s", readable, hex.EncodeToString(sum[:4])),
		Labels: map[string]string{Label: "true"}, Data: map[string]string{dataDirectory: dir, dataFile: name},
	}
}

// job is the goroutine that applies or deletes one file or kustomization. It retries until it succeeds or is stopped.
type job struct {
	*lifecycle.Task
	hash    string
	deleted bool
	// succeeded may be read after Stop.
	succeeded bool
}

// start starts a job for a unit.
func (a *Applier) start(ctx context.Context, u unit) *job {
	j := &job{hash: u.hash, deleted: u.deleted}
	j.Task = lifecycle.StartTask(ctx, func(ctx context.Context) { j.succeeded = a.process(ctx, u) })
	return j
}

// tolerated is the number of attempts that may fail without a report because a kind is not served yet: a
// CustomResourceDefinition in the same file needs a moment.
const tolerated = 5

// process applies or deletes a file or kustomization until it succeeds or ctx is done, and reports whether it
// succeeded. Errors that only a change of the file can resolve are not retried, because a change starts another job.
func (a *Applier) process(ctx context.Context, u unit) bool {
	set, retry, reported := setOf(a.cfg.Dir, u.name), a.retry, ""
	for attempt := 1; ; attempt++ {
		permanent, err := a.attempt(ctx, set, u)
		if ctx.Err() != nil {
			return false
		}
		if err == nil {
			if !u.deleted || reported != "" {
				a.cfg.Log.Info("manifest applied, or its objects deleted because the file was deleted", "file", u.name)
			}
			return true
		}
		text := strings.ReplaceAll(err.Error(), "\n", "; ")
		if text != reported && (permanent || attempt > tolerated || !meta.IsNoMatchError(rootCause(err))) {
			if permanent {
				a.cfg.Log.Warn("manifest cannot be applied; the objects of its previous version are kept, retrying when the file changes", "file", u.name, "err", text)
			} else {
				a.cfg.Log.Warn("applying manifest, or deleting the objects of a deleted one, failed; its objects may be missing, outdated or not deleted, retrying with back-off", "file", u.name, "err", text)
			}
			a.report(ctx, set, u, text)
			reported = text
		}
		// A problem of the directory or of a file ends with a change. Errors of the API may end by themselves.
		if permanent {
			return false
		}
		if !retry.Pause(ctx) {
			return false
		}
	}
}

// rootCause returns the innermost error of the first object that failed, which is the error of the API or of the
// resource mapping.
func rootCause(err error) error {
	if of, ok := errors.AsType[*applyset.Error](err); ok {
		err = of.Err
	}
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err
		}
		err = next
	}
}

// attempt applies or deletes a unit once. permanent reports whether a retry is useless until the user changes the file:
// if it cannot be read or parsed, or if another ConfigMap has the name of the parent.
func (a *Applier) attempt(ctx context.Context, set applyset.Set, u unit) (permanent bool, err error) {
	switch {
	case u.deleted:
		return false, a.cfg.Client.Delete(ctx, set)
	case u.err != nil:
		return true, u.err
	}
	objects, lines, err := u.objects()
	if err != nil {
		return true, err
	}
	if _, err = a.cfg.Client.Apply(ctx, set, objects); err != nil {
		return errors.Is(err, applyset.ErrForeignParent), withLines(err, lines)
	}
	return false, nil
}

// objects parses the files of a unit and returns its objects. For a file, it also returns the line of each object; for
// a kustomization, lines are nil.
func (u unit) objects() ([]*unstructured.Unstructured, map[*unstructured.Unstructured]int, error) {
	if u.kustomization {
		objects, err := build(u)
		return objects, nil, err
	}
	return parse(u.name, u.files[u.name])
}

// withLines adds the line of the object to each error in err that is about an object of the file. Other errors are
// returned unchanged.
func withLines(err error, lines map[*unstructured.Unstructured]int) error {
	joined, ok := err.(interface{ Unwrap() []error }) //nolint:errorlint // Apply joins the errors of objects, it does not wrap them
	if !ok {
		return err
	}
	var out []error
	for _, one := range joined.Unwrap() {
		var of *applyset.Error
		if errors.As(one, &of) && lines[of.Object] > 0 {
			one = &applyset.Error{Ref: of.Ref, Object: of.Object, Err: &lineError{lines[of.Object], of.Err}}
		}
		out = append(out, one)
	}
	return errors.Join(out...)
}

// report writes an error of a unit to the parent of its set, where `hyperkube status` reads it, and creates an event.
func (a *Applier) report(ctx context.Context, set applyset.Set, u unit, text string) {
	set.Data = map[string]string{dataDirectory: a.cfg.Dir, dataFile: u.name, dataError: text}
	err := a.cfg.Client.WriteData(ctx, set)
	if err == nil {
		err = a.cfg.Client.Warn(ctx, set, "ApplyFailed", Problem(set.Data))
	}
	if err != nil && ctx.Err() == nil {
		a.cfg.Log.Warn("writing the error of a manifest to its ConfigMap or an event failed; `hyperkube status` may not show the error, no retry until the error changes", "file", u.name, "err", err)
	}
}
