// Package images brings images to the node: pulls with policies, secrets and
// back-off, and takes unused ones away when the disk fills.
package images

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/kubelet/cri"
	"hyperkube/components/kubelet/telemetry"
)

// Reasons of a container that waits for its image.
const (
	ErrImagePull     = "ErrImagePull"
	ImagePullBackOff = "ImagePullBackOff"
	invalidImageName = "InvalidImageName"
	errImageNever    = "ErrImageNeverPull"
	inspectFailed    = "ImageInspectError"
)

// Error is why there is no image, in the words of a container's status.
type Error struct {
	Reason, Message string
	// RetryAt is when another attempt makes sense; zero is never by itself.
	RetryAt time.Time
}

func (e *Error) Error() string { return e.Reason + ": " + e.Message }

// Puller pulls images. Its methods are safe for several goroutines.
type Puller struct {
	Images runtimeapi.ImageServiceClient
	// Records remember whose credentials were used; nil: everyone may have what
	// is there.
	Records *Records
	// Now is time.Now but in tests.
	Now func() time.Time
	// Metrics counts what is asked for; may be nil.
	Metrics *telemetry.Metrics

	backoffs backoffs
	mu       sync.Mutex // guards flights
	flights  map[string]*flight
	places   chan struct{} // one for each pull at a time; nil for no bound
	rate     *rate.Limiter // nil for no bound
}

type flight struct {
	done chan struct{}
	used int    // which of the credentials; -1: none
	id   string // the image's, once it is there
	ref  string
	err  error
	took time.Duration
	size uint64
}

// pullTold is how long a failed pull is told as such before the waiting for the
// next one is: users look for both.
const pullTold = time.Second

// NewPuller makes a Puller.
func NewPuller(images runtimeapi.ImageServiceClient) *Puller {
	return &Puller{Images: images, Now: time.Now, flights: map[string]*flight{}}
}

// Limit bounds how many images are pulled at a time; 0 does not. It is called
// before anything else is.
func (p *Puller) Limit(n int) {
	if n > 0 {
		p.places = make(chan struct{}, n)
	}
}

// LimitRate bounds how many pulls begin in a second; one more than burst at once
// fails. It is called before anything else is.
func (p *Puller) LimitRate(qps, burst int) {
	if qps > 0 {
		p.rate = rate.NewLimiter(rate.Limit(qps), burst)
	}
}

// Request is an image that a container needs.
type Request struct {
	Pod *v1.Pod
	// Container is the container's name, or the image volume's.
	Container string
	Image     string
	Policy    v1.PullPolicy
	// Own are the credentials that are the pod's own, for which nobody else is
	// asked; All are all credentials to try, in order. Either may be nil.
	Own, All func(ctx context.Context) ([]Credential, error)
	Sandbox  *runtimeapi.PodSandboxConfig
	// Event reports what happens to the pod's users.
	Event func(warning bool, reason, message string)
	// Pulling is called before a pull begins. It may be nil.
	Pulling func()
}

// Ensure makes sure that the image is there by its policy, and returns the
// runtime's reference to it. Errors are of type *Error, or the context's, or
// such that cri.IsGone tells.
func (p *Puller) Ensure(ctx context.Context, r Request) (ref string, err error) {
	there, needed := "unknown", "unknown"
	defer func() { p.Metrics.ImageWanted(strings.ToLower(string(r.Policy)), there, needed) }()
	name, err := normalize(r.Image)
	if err != nil {
		msg := fmt.Sprintf("Failed to apply default image tag %q: couldn't parse image name %q: %v", r.Image, r.Image, err)
		r.Event(true, "InspectFailed", msg)
		return "", &Error{Reason: invalidImageName, Message: msg}
	}
	present, err := p.present(ctx, name)
	if cri.IsGone(err) {
		return "", fmt.Errorf("inspecting image %q: %w", r.Image, err)
	}
	if err != nil {
		return "", p.failed(&r, "InspectFailed", inspectFailed, fmt.Sprintf("Failed to inspect image %q: %s", r.Image, cri.Message(err)))
	}
	there = strconv.FormatBool(present != nil)
	pulls, err := p.mustPull(ctx, &r, present)
	if err != nil {
		return "", err
	}
	needed = strconv.FormatBool(pulls)
	switch {
	case pulls:
		return p.fetch(ctx, name, r)
	case present == nil:
		return "", p.neverThere(&r)
	}
	r.Event(false, "Pulled", fmt.Sprintf("Container image %q already present on machine and can be accessed by the pod", r.Image))
	return present.Id, nil
}

// failed tells of what may go better after a while.
func (p *Puller) failed(r *Request, event, reason, msg string) *Error {
	r.Event(true, event, msg)
	return &Error{Reason: reason, Message: msg, RetryAt: p.Now().Add(pullBase)}
}

// neverThere tells that an image is to be there and is not.
func (p *Puller) neverThere(r *Request) *Error {
	return p.failed(r, "ErrImageNeverPull", errImageNever, fmt.Sprintf("Container image %q is not present with pull policy of Never", r.Image))
}

// mustPull tells whether the image has to be pulled, by its policy and for who asks may
// not have what others have pulled. present is nil where it is not there.
func (p *Puller) mustPull(ctx context.Context, r *Request, present *runtimeapi.Image) (bool, error) {
	if r.pulls(present != nil) {
		return true, nil
	}
	if p.Records == nil || present == nil {
		return false, nil
	}
	must, err := p.Records.MustPull(r.Image, present, func() ([]Credential, error) { return r.credentials(ctx, r.Own) })
	if err != nil {
		return false, p.failed(r, "Failed", ErrImagePull, fmt.Sprintf("Failed to verify the credentials of image %q: %s", r.Image, err))
	}
	if must && r.Policy == v1.PullNever {
		// Whether it is there is nothing to tell to who may not have it.
		return false, p.neverThere(r)
	}
	return must, nil
}

// fetch pulls the image, unless that has failed too often of late.
func (p *Puller) fetch(ctx context.Context, name string, r Request) (ref string, err error) {
	key := string(r.Pod.UID) + "_" + r.Image
	began := p.Now()
	if until, last := p.backoffs.waits(key, began); !until.IsZero() {
		msg := fmt.Sprintf("Back-off pulling image %q", r.Image)
		r.Event(false, "BackOff", msg)
		if last != "" {
			msg += ": " + ErrImagePull + ": " + last
		}
		return "", &Error{Reason: ImagePullBackOff, Message: msg, RetryAt: until}
	}
	r.Event(false, "Pulling", fmt.Sprintf("Pulling image %q", r.Image))
	if r.Pulling != nil {
		r.Pulling()
	}
	f := p.recorded(ctx, name, r)
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	if cri.IsGone(f.err) {
		return "", fmt.Errorf("pulling image %q: %w", r.Image, f.err)
	}
	if f.err != nil {
		r.Event(true, "Failed", fmt.Sprintf("Failed to pull image %q: %s", r.Image, f.err))
		now := p.Now()
		p.backoffs.failed(key, f.err.Error(), now)
		return "", &Error{Reason: ErrImagePull, Message: f.err.Error(), RetryAt: now.Add(pullTold)}
	}
	p.Metrics.ImagePulled(f.size, f.took)
	p.backoffs.forget(key)
	r.Event(false, "Pulled", fmt.Sprintf("Successfully pulled image %q in %v (%v including waiting). Image size: %v bytes.",
		r.Image, f.took.Truncate(time.Millisecond), p.Now().Sub(began).Truncate(time.Millisecond), f.size))
	return f.ref, nil
}

func (r *Request) pulls(present bool) bool {
	switch r.Policy {
	case v1.PullAlways:
		return true
	case v1.PullNever:
		return false
	}
	return !present
}

func (p *Puller) present(ctx context.Context, name string) (*runtimeapi.Image, error) {
	resp, err := p.Images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: name}})
	if err != nil {
		if cri.IsNotFound(err) {
			return nil, nil
		}
		return nil, err
	}
	return resp.Image, nil
}

// credentials asks for some; nil has none.
func (r *Request) credentials(ctx context.Context, ask func(context.Context) ([]Credential, error)) ([]Credential, error) {
	if ask == nil {
		return nil, nil
	}
	return ask(ctx)
}

// recorded pulls an image and remembers with whose credentials.
func (p *Puller) recorded(ctx context.Context, name string, r Request) *flight {
	list, err := r.credentials(ctx, r.All)
	if err != nil {
		return &flight{err: err}
	}
	if p.Records == nil {
		return p.pull(ctx, name, r, list)
	}
	if err := p.Records.Begin(r.Image); err != nil {
		return &flight{err: fmt.Errorf("failed to record image pull intent for image %q: %w", r.Image, err)}
	}
	f := p.pull(ctx, name, r, list)
	var used Credential
	ref := f.id
	if ref == "" {
		ref = f.ref
	}
	switch {
	case f.err != nil:
		ref = ""
	case f.used >= 0:
		used = list[f.used]
	}
	if err := p.Records.End(r.Image, ref, used); err != nil && f.err == nil {
		// The image is known to have come by the kubelet: who wants it next shows
		// their credentials.
		p.Records.Log.Warn("recording whose credentials pulled an image failed", "image", r.Image, "error", err)
	}
	return f
}

// pull pulls an image once for all who want the same with the same credentials.
func (p *Puller) pull(ctx context.Context, name string, r Request, list []Credential) *flight {
	key := name
	for _, c := range list {
		a := c.Auth
		key += "\x00" + a.Username + "\x00" + a.Password + "\x00" + a.Auth + "\x00" + a.IdentityToken + "\x00" + a.RegistryToken
	}
	for {
		p.mu.Lock()
		f := p.flights[key]
		if f == nil {
			f = &flight{done: make(chan struct{})}
			p.flights[key] = f
			p.mu.Unlock()
			p.fly(ctx, name, r, list, f)
			p.mu.Lock()
			delete(p.flights, key)
			p.mu.Unlock()
			close(f.done)
			return f
		}
		p.mu.Unlock()
		select {
		case <-f.done:
			if errors.Is(f.err, context.Canceled) && ctx.Err() == nil {
				continue // the other pod went away in the middle
			}
			return f
		case <-ctx.Done():
			return &flight{err: ctx.Err()}
		}
	}
}

func (p *Puller) fly(ctx context.Context, name string, r Request, list []Credential, f *flight) {
	if p.places != nil {
		select {
		case p.places <- struct{}{}:
			defer func() { <-p.places }()
		case <-ctx.Done():
			f.err = ctx.Err()
			return
		}
	}
	began := p.Now()
	f.used = -1
	auths := make([]*runtimeapi.AuthConfig, len(list))
	for i := range list {
		auths[i] = list[i].Auth
	}
	if len(auths) == 0 {
		auths = []*runtimeapi.AuthConfig{nil}
	}
	var errs []error
	for i, a := range auths {
		if p.rate != nil && !p.rate.Allow() {
			errs = append(errs, errors.New("pull QPS exceeded"))
			continue
		}
		resp, err := p.Images.PullImage(ctx, &runtimeapi.PullImageRequest{
			Image: &runtimeapi.ImageSpec{Image: name}, Auth: a, SandboxConfig: r.Sandbox,
		})
		if err != nil {
			if ctx.Err() != nil {
				f.err = ctx.Err()
				return
			}
			errs = append(errs, plain(err))
			continue
		}
		f.ref, f.took = resp.ImageRef, p.Now().Sub(began)
		if len(list) > 0 {
			f.used = i
		}
		if img, err := p.present(ctx, name); err == nil && img != nil {
			f.size, f.id = img.Size, img.Id
			if f.ref == "" {
				f.ref = img.Id
			}
		}
		return
	}
	if len(errs) == 1 {
		f.err = errs[0]
	} else {
		f.err = errors.Join(errs...)
	}
	f.took = p.Now().Sub(began)
}

// plain is an error without the code of one that says nothing.
func plain(err error) error {
	if s, ok := status.FromError(err); ok && s.Code() == codes.Unknown {
		return errors.New(s.Message())
	}
	return err
}

// normalize adds the tag "latest" to a name that has neither tag nor digest,
// and refuses what no registry could have.
func normalize(image string) (string, error) {
	if image == "" || strings.TrimSpace(image) != image {
		return "", errors.New("invalid reference format")
	}
	rest, digest, hasDigest := strings.Cut(image, "@")
	if hasDigest && !validDigest(digest) {
		return "", errors.New("invalid reference format")
	}
	name := rest
	tag := ""
	if i := strings.LastIndexByte(rest, ':'); i > strings.LastIndexByte(rest, '/') {
		name, tag = rest[:i], rest[i+1:]
		if !validTag(tag) {
			return "", errors.New("invalid reference format")
		}
	}
	if strings.HasPrefix(rest, "sha256:") && len(rest) == len("sha256:")+64 {
		return image, nil
	}
	host, path, hasHost := strings.Cut(name, "/")
	if !hasHost || !(strings.ContainsAny(host, ".:") || host == "localhost" || strings.ToLower(host) != host) {
		path = name
	}
	if strings.ToLower(path) != path {
		return "", errors.New("invalid reference format: repository name must be lowercase")
	}
	for part := range strings.SplitSeq(path, "/") {
		if !validPart(part) {
			return "", errors.New("invalid reference format")
		}
	}
	if tag == "" && !hasDigest {
		return image + ":latest", nil
	}
	return image, nil
}

func validPart(s string) bool {
	if s == "" {
		return false
	}
	for i := range len(s) {
		c := s[i]
		alnum := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		if alnum {
			continue
		}
		if i == 0 || i == len(s)-1 || !strings.ContainsRune("._-", rune(c)) {
			return false
		}
	}
	return true
}

func validTag(s string) bool {
	if s == "" || len(s) > 128 || s[0] == '.' || s[0] == '-' {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("._-", rune(c))) {
			return false
		}
	}
	return true
}

func validDigest(s string) bool {
	algorithm, hex, ok := strings.Cut(s, ":")
	if !ok || algorithm == "" || len(hex) < 32 {
		return false
	}
	return strings.Trim(hex, "0123456789abcdef") == ""
}
