package cni

import (
	"fmt"
	"math"

	"k8s.io/apimachinery/pkg/api/resource"
)

// ingressAnnotation and egressAnnotation are the annotations with the bandwidth limits of a pod.
//
// https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/network-plugins/#support-traffic-shaping
const (
	ingressAnnotation = "kubernetes.io/ingress-bandwidth"
	egressAnnotation  = "kubernetes.io/egress-bandwidth"
)

// Bandwidth limits the traffic to and from a pod, in bits per second. Zero means unlimited.
type Bandwidth struct{ Ingress, Egress uint64 }

// minBandwidth and maxBandwidth are the minimum and maximum values of the bandwidth annotations. Other values are
// an error, as in upstream.
var (
	minBandwidth = resource.MustParse("1k")
	maxBandwidth = resource.MustParse("1P")
)

// BandwidthOf returns the limits in the bandwidth annotations of a pod. It returns an error if a value is not a
// quantity or out of range.
func BandwidthOf(annotations map[string]string) (Bandwidth, error) {
	var b Bandwidth
	for name, to := range map[string]*uint64{ingressAnnotation: &b.Ingress, egressAnnotation: &b.Egress} {
		text, ok := annotations[name]
		if !ok {
			continue
		}
		q, err := resource.ParseQuantity(text)
		if err != nil {
			return b, fmt.Errorf("annotation %s: %w", name, err)
		}
		if q.Cmp(minBandwidth) < 0 {
			return b, fmt.Errorf("annotation %s: resource is unreasonably small (< 1kbit)", name)
		}
		if q.Cmp(maxBandwidth) > 0 {
			return b, fmt.Errorf("annotation %s: resource is unreasonably large (> 1Pbit)", name)
		}
		*to = uint64(q.Value())
	}
	return b, nil
}

// Capability returns the limits as arguments of the capability "bandwidth" for CNI plugins, without a limit of
// bursts, or nil if there is no limit.
func (b Bandwidth) Capability() map[string]any {
	if b == (Bandwidth{}) {
		return nil
	}
	out := map[string]any{}
	if b.Ingress > 0 {
		out["ingressRate"], out["ingressBurst"] = b.Ingress, uint64(math.MaxUint32)
	}
	if b.Egress > 0 {
		out["egressRate"], out["egressBurst"] = b.Egress, uint64(math.MaxUint32)
	}
	return out
}
