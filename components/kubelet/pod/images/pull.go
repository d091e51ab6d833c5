// Package images manages images on the node: it pulls them with policies, credentials and back-off,
// and removes unused ones when the disk fills up.
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

// ErrImagePull and the other constants are the reasons of containers that wait because their image is not
// available, as in upstream.
const (
	ErrImagePull     = "ErrImagePull"
	ImagePullBackOff = "ImagePullBackOff"
	invalidImageName = "InvalidImageName"
	errImageNever    = "ErrImageNeverPull"
	inspectFailed    = "ImageInspectError"
)

// Error is the failure to provide an image for a container. Reason and Message are those of the container's
// state Waiting.
type Error struct {
	Reason, Message string
	// RetryAt is when the container may request the image again. Zero means that a retry cannot succeed
	// before the pod changes.
	RetryAt time.Time
}

// Error returns the reason and the message.
func (e *Error) Error() string { return e.Reason + ": " + e.Message }

// Puller makes images present on the node for containers. Its methods are safe for concurrent use.
type Puller struct {
	Images runtimeapi.ImageServiceClient
	// Records store the credentials of pulls. If it is nil, all pods may use all present images.
	Records *Records
	// Now returns the current time. It is time.Now except in tests.
	Now func() time.Time
	// Metrics counts requests and pulls. It may be nil.
	Metrics *telemetry.Images

	backoffs backoffs
	mu       sync.Mutex // guards flights
	// flights are the pulls in progress, by image name and credentials.
	flights map[string]*flight
	slots   chan struct{} // semaphore of concurrent pulls; nil for no limit
	rate    *rate.Limiter // nil for no limit
}

// flight is one pull, which may be shared by several pods. done is closed when the other fields are set.
type flight struct {
	done       chan struct{}
	credential int    // index of the credential that succeeded; -1 for none
	id         string // image ID, once pulled
	ref        string
	err        error
	duration   time.Duration
	size       uint64
}

// pullErrorDuration is how long a failed pull is reported as ErrImagePull before ImagePullBackOff, because
// users look for both reasons.
const pullErrorDuration = time.Second

// NewPuller returns a Puller without limits that pulls from the image service images.
func NewPuller(images runtimeapi.ImageServiceClient) *Puller {
	return &Puller{Images: images, Now: time.Now, flights: map[string]*flight{}}
}

// Limit limits the number of concurrent pulls; 0 means no limit. It must be called before other
// methods.
func (p *Puller) Limit(n int) {
	if n > 0 {
		p.slots = make(chan struct{}, n)
	}
}

// LimitRate limits the pulls to qps per second, with bursts. A pull that exceeds the limit fails and is in
// back-off then. It must be called before other methods.
func (p *Puller) LimitRate(qps, burst int) {
	if qps > 0 {
		p.rate = rate.NewLimiter(rate.Limit(qps), burst)
	}
}

// Request is a request for an image that a container needs.
type Request struct {
	Pod *v1.Pod
	// Container is the name of the container or of the image volume.
	Container string
	Image     string
	Policy    v1.PullPolicy
	// PodCredentials returns the credentials that the pod itself has, without those of the node.
	// AllCredentials returns all credentials to try, in order. Either may be nil.
	PodCredentials, AllCredentials func(ctx context.Context) ([]Credential, error)
	Sandbox                        *runtimeapi.PodSandboxConfig
	// Event emits an event for the pod.
	Event func(warning bool, reason, message string)
	// Pulling is called before a pull starts. It may be nil.
	Pulling func()
}

// Ensure makes the image of the request present according to its pull policy, and returns the runtime's
// reference to the image. It also pulls an image that is present if the pod must prove that it may use it. An
// error is an *Error, a context error, or an error for which cri.IsUnavailable returns true.
func (p *Puller) Ensure(ctx context.Context, r Request) (ref string, err error) {
	there, needed := "unknown", "unknown"
	defer func() { p.Metrics.ImageRequested(strings.ToLower(string(r.Policy)), there, needed) }()
	name, err := normalize(r.Image)
	if err != nil {
		msg := fmt.Sprintf("Failed to apply default image tag %q: couldn't parse image name %q: %v", r.Image, r.Image, err)
		r.Event(true, "InspectFailed", msg)
		return "", &Error{Reason: invalidImageName, Message: msg}
	}
	present, err := p.present(ctx, name)
	if cri.IsUnavailable(err) {
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
		return p.pullWithBackoff(ctx, name, r)
	case present == nil:
		return "", p.neverPullError(&r)
	}
	r.Event(false, "Pulled", fmt.Sprintf("Container image %q already present on machine and can be accessed by the pod", r.Image))
	return present.Id, nil
}

// failed emits a Warning event with the reason event and the message msg. It returns an Error with the reason and
// msg, which become those of the waiting container. The caller may retry after pullBase.
func (p *Puller) failed(r *Request, event, reason, msg string) *Error {
	r.Event(true, event, msg)
	return &Error{Reason: reason, Message: msg, RetryAt: p.Now().Add(pullBase)}
}

// neverPullError returns the error of an image that is not present although the policy is Never.
func (p *Puller) neverPullError(r *Request) *Error {
	return p.failed(r, "ErrImageNeverPull", errImageNever, fmt.Sprintf("Container image %q is not present with pull policy of Never", r.Image))
}

// mustPull reports whether the image must be pulled, because of the pull policy or because the pod may not
// use what other pods have pulled. present is the image, or nil if it is not present.
func (p *Puller) mustPull(ctx context.Context, r *Request, present *runtimeapi.Image) (bool, error) {
	if r.pullRequired(present != nil) {
		return true, nil
	}
	if p.Records == nil || present == nil {
		return false, nil
	}
	must, err := p.Records.MustPull(r.Image, present, func() ([]Credential, error) { return r.credentials(ctx, r.PodCredentials) })
	if err != nil {
		return false, p.failed(r, "Failed", ErrImagePull, fmt.Sprintf("Failed to verify the credentials of image %q: %s", r.Image, err))
	}
	if must && r.Policy == v1.PullNever {
		// Do not reveal that the image is present to a pod that may not use it.
		return false, p.neverPullError(r)
	}
	return must, nil
}

// pullWithBackoff pulls the image with the normalized name, and returns the runtime's reference to it. During
// the back-off of the pod and image it returns an Error with the reason ImagePullBackOff instead.
func (p *Puller) pullWithBackoff(ctx context.Context, name string, r Request) (ref string, err error) {
	key := string(r.Pod.UID) + "_" + r.Image
	began := p.Now()
	if until, last := p.backoffs.backoffUntil(key, began); !until.IsZero() {
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
	f := p.pullRecorded(ctx, name, r)
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	if cri.IsUnavailable(f.err) {
		return "", fmt.Errorf("pulling image %q: %w", r.Image, f.err)
	}
	if f.err != nil {
		r.Event(true, "Failed", fmt.Sprintf("Failed to pull image %q: %s", r.Image, f.err))
		now := p.Now()
		p.backoffs.increase(key, f.err.Error(), now)
		return "", &Error{Reason: ErrImagePull, Message: f.err.Error(), RetryAt: now.Add(pullErrorDuration)}
	}
	p.Metrics.ImagePulled(f.size, f.duration)
	p.backoffs.reset(key)
	r.Event(false, "Pulled", fmt.Sprintf("Successfully pulled image %q in %v (%v including waiting). Image size: %v bytes.",
		r.Image, f.duration.Truncate(time.Millisecond), p.Now().Sub(began).Truncate(time.Millisecond), f.size))
	return f.ref, nil
}

// pullRequired reports whether the image must be pulled because of the pull policy alone. present is true if the
// node already has the image.
func (r *Request) pullRequired(present bool) bool {
	switch r.Policy {
	case v1.PullAlways:
		return true
	case v1.PullNever:
		return false
	}
	return !present
}

// present returns the image of that name in the runtime, or nil if it is not present.
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

// credentials calls ask, which is r.PodCredentials or r.AllCredentials, and returns the credentials. If ask is nil,
// because the caller has none, it returns none.
func (r *Request) credentials(ctx context.Context, ask func(context.Context) ([]Credential, error)) ([]Credential, error) {
	if ask == nil {
		return nil, nil
	}
	return ask(ctx)
}

// pullRecorded pulls the image and records with which credential, so that later pods must present it. If that
// cannot be recorded before the pull, the pull fails.
func (p *Puller) pullRecorded(ctx context.Context, name string, r Request) *flight {
	list, err := r.credentials(ctx, r.AllCredentials)
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
	case f.credential >= 0:
		used = list[f.credential]
	}
	if err := p.Records.End(r.Image, ref, used); err != nil && f.err == nil {
		// The record shows that the kubelet has pulled the image, so the next pod must present
		// credentials.
		p.Records.Log.Warn("storing with which credentials an image was pulled failed; the pod starts, but the next pod that uses the image must present pull credentials, no retry", "image", r.Image, "err", err)
	}
	return f
}

// pull pulls the image with one of the credentials of list. Concurrent calls for the same image and credentials
// share one pull. If that is cancelled for the pod that started it, another one of them starts a new pull.
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
				continue // the other pod's pull was cancelled
			}
			return f
		case <-ctx.Done():
			return &flight{err: ctx.Err()}
		}
	}
}

// fly executes the pull f. It waits until fewer pulls run than the configured maximum, and then tries the
// credentials of list in order, or none if list is empty, until one succeeds. An attempt that would exceed the
// configured rate of pulls fails without a call. It sets the result in f.
func (p *Puller) fly(ctx context.Context, name string, r Request, list []Credential, f *flight) {
	if p.slots != nil {
		select {
		case p.slots <- struct{}{}:
			defer func() { <-p.slots }()
		case <-ctx.Done():
			f.err = ctx.Err()
			return
		}
	}
	began := p.Now()
	f.credential = -1
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
		f.ref, f.duration = resp.ImageRef, p.Now().Sub(began)
		if len(list) > 0 {
			f.credential = i
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
	f.duration = p.Now().Sub(began)
}

// plain removes the gRPC code from an error with the code Unknown, because it only makes the message longer.
func plain(err error) error {
	if s, ok := status.FromError(err); ok && s.Code() == codes.Unknown {
		return errors.New(s.Message())
	}
	return err
}

// normalize returns an image name with the tag "latest" added if it has neither tag nor digest. An image ID,
// sha256 and a hash, is returned unchanged. It returns an error for an invalid name.
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

// validPart reports whether s is a valid element of the path of an image name: lowercase letters and digits,
// and inside of them also dots, hyphens and underscores.
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

// validTag reports whether s is a valid image tag.
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

// validDigest reports whether s is an algorithm and at least 32 hexadecimal digits.
func validDigest(s string) bool {
	algorithm, hex, ok := strings.Cut(s, ":")
	if !ok || algorithm == "" || len(hex) < 32 {
		return false
	}
	return strings.Trim(hex, "0123456789abcdef") == ""
}
