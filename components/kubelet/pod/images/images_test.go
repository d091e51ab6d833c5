package images

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"

	"hyperkube/components/kubelet/cri/crifake"
)

func TestNormalize(t *testing.T) {
	digest, longest := "@sha256:"+strings.Repeat("a", 64), strings.Repeat("t", 128)
	for in, want := range map[string]string{
		"busybox": "busybox:latest", "busybox:1": "busybox:1", "a/b": "a/b:latest", "localhost:5000/x": "localhost:5000/x:latest",
		"r.example:5/a/b:t": "r.example:5/a/b:t", "x" + digest: "x" + digest, "x:1" + digest: "x:1" + digest,
		"": "", " x": "", "Busybox": "", "a//b": "", "x:bad tag": "", "x@sha256:zz": "", "r.example/Upper": "", "-x": "", "x:": "",
		"x:" + longest: "x:" + longest, "x:" + longest + "t": "", "x@:" + longest[:32]: "", "x@" + digest[len("@sha256:"):]: "", "x@sha256:" + digest[33:41]: "",
	} {
		got, err := normalize(in)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("Normalize(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
}

func FuzzNormalize(f *testing.F) {
	f.Add("r.example:5/a/b:t@sha256:aa")
	f.Fuzz(func(t *testing.T, s string) {
		if got, err := normalize(s); err == nil && !strings.HasPrefix(got, s) {
			t.Errorf("Normalize(%q) = %q", s, got)
		}
	})
}

// TestYoungImages checks that a recently pulled image is not removed before its container is
// created, regardless of disk usage.
func TestYoungImages(t *testing.T) {
	r := crifake.New("busybox:1")
	c := &Collector{CRI: r.Client(), High: 85, Low: 80, MinAge: time.Hour, Path: t.TempDir(), Log: slog.New(slog.DiscardHandler)}
	there := func() int {
		resp, err := r.ListImages(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		return len(resp.Images)
	}
	if err := c.Collect(t.Context(), true); err != nil || there() != 1 {
		t.Errorf("%d images, %v", there(), err)
	}
	c.MinAge = 0
	if err := c.Collect(t.Context(), true); err != nil || there() != 0 {
		t.Errorf("%d images, %v", there(), err)
	}
}

func TestBackOff(t *testing.T) {
	rt := crifake.New()
	rt.Fail("PullImage", status.Error(codes.Unknown, "no such host"))
	p := NewPuller(rt)
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	p.Now = func() time.Time { return now }
	var events []string
	r := Request{Pod: &v1.Pod{}, Image: "x:1", Policy: v1.PullIfNotPresent, Event: func(_ bool, reason, _ string) { events = append(events, reason) }}
	ensure := func(reason, message string, wait time.Duration) {
		t.Helper()
		_, err := p.Ensure(context.Background(), r)
		var e *Error
		if !errors.As(err, &e) || e.Reason != reason || e.Message != message || !e.RetryAt.Equal(now.Add(wait)) {
			t.Fatalf("got %+v, want %s", err, reason)
		}
	}
	ensure(ErrImagePull, "no such host", pullErrorDuration)
	now = now.Add(4 * time.Second)
	ensure(ImagePullBackOff, `Back-off pulling image "x:1": ErrImagePull: no such host`, 6*time.Second)
	now = now.Add(6 * time.Second)
	ensure(ErrImagePull, "no such host", pullErrorDuration)
	now = now.Add(20 * time.Second)
	rt.Fail("PullImage", nil)
	if ref, err := p.Ensure(context.Background(), r); err != nil || ref != "sha256:x:1" {
		t.Fatal(ref, err)
	}
	if got := strings.Join(events, " "); got != "Pulling Failed BackOff Pulling Failed Pulling Pulled" {
		t.Errorf("events: %s", got)
	}
}

// TestPolicies checks which policies pull an image, and the events and errors.
func TestPolicies(t *testing.T) {
	for _, tc := range []struct {
		image   string
		policy  v1.PullPolicy
		ref     string
		reason  string // of the error
		events  string
		retries bool
	}{
		{"there:1", v1.PullAlways, "sha256:there:1", "", "Pulling Pulled", false},
		{"there:1", v1.PullIfNotPresent, "sha256:there:1", "", "Pulled", false},
		{"there:1", v1.PullNever, "sha256:there:1", "", "Pulled", false},
		{"absent:1", v1.PullAlways, "sha256:absent:1", "", "Pulling Pulled", false},
		{"absent:1", v1.PullIfNotPresent, "sha256:absent:1", "", "Pulling Pulled", false},
		{"absent:1", v1.PullNever, "", errImageNever, "Warning:ErrImageNeverPull", true},
		{"No:Image", v1.PullIfNotPresent, "", invalidImageName, "Warning:InspectFailed", false},
	} {
		t.Run(string(tc.policy)+" "+tc.image, func(t *testing.T) {
			var events []string
			ref, err := NewPuller(crifake.New("there:1")).Ensure(t.Context(), Request{
				Pod: &v1.Pod{}, Image: tc.image, Policy: tc.policy, Event: func(warning bool, reason, _ string) {
					if warning {
						reason = "Warning:" + reason
					}
					events = append(events, reason)
				},
			})
			var e *Error
			if errors.As(err, &e) {
				if e.Reason != tc.reason || !e.RetryAt.IsZero() != tc.retries {
					t.Errorf("%+v, want %s", e, tc.reason)
				}
			} else if err != nil || tc.reason != "" {
				t.Errorf("%v, want %s", err, tc.reason)
			}
			if got := strings.Join(events, " "); ref != tc.ref || got != tc.events {
				t.Errorf("%q and events %s, want %q and %s", ref, got, tc.ref, tc.events)
			}
		})
	}
}

// TestNearestAuthFirst checks that credentials of a repository take precedence over those of its
// registry.
func TestNearestAuthFirst(t *testing.T) {
	secret := &v1.Secret{Type: v1.SecretTypeDockerConfigJson, Data: map[string][]byte{v1.DockerConfigJsonKey: []byte(`{"auths":{
		"r.example":{"username":"all"}, "r.example/team":{"username":"team"}, "r.example/team/app":{"username":"app"}, "r.example/other":{"username":"other"}}}`)}}
	var got []string
	for _, c := range Auths("r.example/team/app:1", []*v1.Secret{secret}) {
		got = append(got, c.Auth.Username)
	}
	if strings.Join(got, " ") != "app team all" {
		t.Errorf("tried in the order %v", got)
	}
}

func TestAuths(t *testing.T) {
	secret := &v1.Secret{Type: v1.SecretTypeDockerConfigJson, Data: map[string][]byte{v1.DockerConfigJsonKey: []byte(`{"auths":{
		"r.example:5000":{"username":"u","password":"p"},
		"https://index.docker.io/v1/":{"auth":"aHViOnB3"},
		"*.wild.example/team":{"username":"w","password":"x"}}}`)}}
	for image, want := range map[string]string{
		"r.example:5000/a/b:1": "u:p", "r.example/a": "", "busybox": "hub:pw", "docker.io/library/busybox": "hub:pw",
		"a.wild.example/team/x": "w:x", "a.wild.example/other": "", "a.b.wild.example/team": "",
	} {
		got := ""
		if list := Auths(image, []*v1.Secret{secret}); len(list) > 0 {
			got = list[0].Auth.Username + ":" + list[0].Auth.Password
		}
		if got != want {
			t.Errorf("%s: %q, want %q", image, got, want)
		}
	}
}
