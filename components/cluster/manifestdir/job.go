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

// Label is the label of the parents of the units' sets.
const Label = "hyperkube.io/manifest"

// Keys of the data of a parent.
const (
	dataDirectory = "directory"
	dataFile      = "file"
	dataError     = "error"
)

// Problem returns the message about the unit of a parent with this data, or "" if the unit is applied.
func Problem(data map[string]string) string {
	if data[dataError] == "" {
		return ""
	}
	return "manifest " + data[dataFile] + ": " + data[dataError]
}

// setOf returns the set of a unit of a directory. The name of its parent is readable, and unique in the directory: a
// directory that is moved keeps its sets.
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

// job applies or deletes one unit. It ends when it has succeeded.
type job struct {
	*lifecycle.Task
	hash    string
	deleted bool
	// succeeded may be read after Stop.
	succeeded bool
}

// start starts a job.
func (a *Applier) start(ctx context.Context, u unit) *job {
	j := &job{hash: u.hash, deleted: u.deleted}
	j.Task = lifecycle.StartTask(ctx, func(ctx context.Context) { j.succeeded = a.process(ctx, u) })
	return j
}

// tolerated is the number of attempts that may fail without a report because a kind is not served yet: a
// CustomResourceDefinition in the same file needs a moment.
const tolerated = 5

// process applies or deletes a unit until it succeeds or ctx is done. A unit that cannot be read or parsed is not
// retried, because a change of its files starts another job. It reports whether it succeeded.
func (a *Applier) process(ctx context.Context, u unit) bool {
	set, retry, reported := setOf(a.cfg.Dir, u.name), a.retry, ""
	for attempt := 1; ; attempt++ {
		permanent, err := a.attempt(ctx, set, u)
		if ctx.Err() != nil {
			return false
		}
		if err == nil {
			if !u.deleted || reported != "" {
				a.cfg.Log.Info("manifest applied", "file", u.name)
			}
			return true
		}
		text := strings.ReplaceAll(err.Error(), "\n", "; ")
		if text != reported && (permanent || attempt > tolerated || !meta.IsNoMatchError(rootCause(err))) {
			if permanent {
				a.cfg.Log.Warn("reading manifest failed; its former objects are kept, retrying when the file changes", "file", u.name, "err", text)
			} else {
				a.cfg.Log.Warn("applying manifest failed; its objects may be missing or outdated, retrying with back-off", "file", u.name, "err", text)
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

// rootCause returns the first error of an object, without what the packages have added to it.
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

// attempt applies or deletes a unit once. permanent reports whether the error needs a change of the unit.
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

// objects returns the objects of a unit, and their lines if it is a file.
func (u unit) objects() ([]*unstructured.Unstructured, map[*unstructured.Unstructured]int, error) {
	if u.kustomization {
		objects, err := build(u)
		return objects, nil, err
	}
	return parse(u.name, u.files[u.name])
}

// withLines adds the lines of the objects to the errors that err joins.
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

// report reports an error of a unit in the parent of its set and as an event.
func (a *Applier) report(ctx context.Context, set applyset.Set, u unit, text string) {
	set.Data = map[string]string{dataDirectory: a.cfg.Dir, dataFile: u.name, dataError: text}
	err := a.cfg.Client.WriteData(ctx, set)
	if err == nil {
		err = a.cfg.Client.Warn(ctx, set, "ApplyFailed", Problem(set.Data))
	}
	if err != nil && ctx.Err() == nil {
		a.cfg.Log.Warn("reporting an error of a manifest failed; `hyperkube status` does not show it until the next error", "file", u.name, "err", err)
	}
}
