package admission

import (
	"cmp"
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/kubernetes"
	networkinglisters "k8s.io/client-go/listers/networking/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/utils/ptr"

	"hyperkube/components/apiserver/syncgate"
)

var (
	claims         = schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumeclaims"}
	storageClasses = storagev1.SchemeGroupVersion.WithResource("storageclasses")
)

// betaClassAnnotation is the annotation that named a claim's storage class before
// spec.storageClassName existed.
const betaClassAnnotation = corev1.BetaStorageClassAnnotation

// newestDefault returns the newest of the classes for which isDefault returns true, and the first by name if several
// are equally new. The result is false if there is none.
func newestDefault[T metav1.Object](all []T, isDefault func(T) bool) (T, bool) {
	defaults := slices.DeleteFunc(slices.Clone(all), func(c T) bool { return !isDefault(c) })
	if len(defaults) == 0 {
		var none T
		return none, false
	}
	return slices.MinFunc(defaults, func(x, y T) int {
		a, b := x.GetCreationTimestamp(), y.GetCreationTimestamp()
		return cmp.Or(b.Time.Compare(a.Time), cmp.Compare(x.GetName(), y.GetName()))
	}), true
}

// defaultStorageClass is the plugin DefaultStorageClass. It sets the default storage class in new
// claims that do not name one.
type defaultStorageClass struct {
	operations
	lister storagelisters.StorageClassLister
	gate   *syncgate.Gate
}

// newDefaultStorageClass creates the plugin DefaultStorageClass. It returns nil, which disables the plugin, if
// StorageClasses or claims are not served.
func newDefaultStorageClass(cfg *Config) (admission.Interface, error) {
	if !cfg.Serves(storageClasses) || !cfg.Serves(claims) {
		return nil, nil
	}
	inf := cfg.Informers.Storage().V1().StorageClasses()
	return &defaultStorageClass{operations: onCreate, lister: inf.Lister(), gate: syncgate.NewGate(inf.Informer().HasSyncedChecker())}, nil
}

// Admit sets the storage class of a new claim that names none, neither in its spec nor in the former annotation, to
// the newest default class. It does nothing if there is no default class.
func (p *defaultStorageClass) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pvc, ok := a.GetObject().(*corev1.PersistentVolumeClaim)
	if !ok || !isRequestFor(a, "", "persistentvolumeclaims") || pvc.Spec.StorageClassName != nil {
		return nil
	}
	if _, named := pvc.Annotations[betaClassAnnotation]; named {
		return nil
	}
	if err := p.gate.Wait(ctx); err != nil {
		return apierrors.NewInternalError(err)
	}
	all, err := p.lister.List(labels.Everything())
	if err != nil {
		return admission.NewForbidden(a, err)
	}
	class, ok := newestDefault(all, func(c *storagev1.StorageClass) bool {
		return c.Annotations["storageclass.kubernetes.io/is-default-class"] == "true" ||
			c.Annotations["storageclass.beta.kubernetes.io/is-default-class"] == "true"
	})
	if ok {
		name := class.Name
		pvc.Spec.StorageClassName = &name
	}
	return nil
}

// storageInUse is the plugin StorageObjectInUseProtection. It adds the finalizer that keeps claims,
// volumes and VolumeAttributesClasses from being removed while they are in use.
type storageInUse struct{ operations }

// newStorageInUse creates the plugin StorageObjectInUseProtection. It returns nil, which disables the plugin, if
// claims are not served.
func newStorageInUse(cfg *Config) (admission.Interface, error) {
	// The finalizer needs a controller that removes it.
	if !cfg.Serves(claims) {
		return nil, nil
	}
	return storageInUse{onCreate}, nil
}

// Admit adds the finalizer to a new PersistentVolumeClaim, PersistentVolume or
// VolumeAttributesClass, so that it is not removed while it is in use.
func (storageInUse) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	add := func(m *metav1.ObjectMeta, finalizer string) {
		if !slices.Contains(m.Finalizers, finalizer) {
			m.Finalizers = append(m.Finalizers, finalizer)
		}
	}
	switch obj := a.GetObject().(type) {
	case *corev1.PersistentVolumeClaim:
		if isRequestFor(a, "", "persistentvolumeclaims") {
			add(&obj.ObjectMeta, "kubernetes.io/pvc-protection")
		}
	case *corev1.PersistentVolume:
		if isRequestFor(a, "", "persistentvolumes") {
			add(&obj.ObjectMeta, "kubernetes.io/pv-protection")
		}
	case *storagev1.VolumeAttributesClass:
		if isRequestFor(a, "storage.k8s.io", "volumeattributesclasses") {
			add(&obj.ObjectMeta, "kubernetes.io/vac-protection")
		}
	}
	return nil
}

// claimResize is the plugin PersistentVolumeClaimResize. It allows claims to grow only if their
// storage class allows expansion.
type claimResize struct {
	operations
	lister storagelisters.StorageClassLister
	kube   kubernetes.Interface
}

// newClaimResize creates the plugin PersistentVolumeClaimResize. It returns nil, which disables the plugin, if
// StorageClasses or claims are not served.
func newClaimResize(cfg *Config) (admission.Interface, error) {
	if !cfg.Serves(storageClasses) || !cfg.Serves(claims) {
		return nil, nil
	}
	return &claimResize{operations: onUpdate, lister: cfg.Informers.Storage().V1().StorageClasses().Lister(), kube: cfg.Kube}, nil
}

// Validate rejects an update that increases the storage request of a claim if the claim is not bound or its storage
// class does not allow expansion.
func (p *claimResize) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if !isRequestFor(a, "", "persistentvolumeclaims") {
		return nil
	}
	pvc, ok := a.GetObject().(*corev1.PersistentVolumeClaim)
	if !ok {
		return nil
	}
	old, ok := a.GetOldObject().(*corev1.PersistentVolumeClaim)
	if !ok {
		return nil
	}
	newSize, oldSize := pvc.Spec.Resources.Requests[corev1.ResourceStorage], old.Spec.Resources.Requests[corev1.ResourceStorage]
	if newSize.Cmp(oldSize) <= 0 {
		return nil
	}
	if old.Status.Phase != corev1.ClaimBound {
		return forbid(a, "Only bound persistent volume claims can be expanded")
	}
	if !p.expands(ctx, pvc, old) {
		return forbid(a, "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize")
	}
	return nil
}

// expands reports whether the storage class of the claim allows expansion. It returns false if the claim has, or had,
// no class, or if the class cannot be read.
func (p *claimResize) expands(ctx context.Context, pvc, old *corev1.PersistentVolumeClaim) bool {
	className := func(c *corev1.PersistentVolumeClaim) string {
		if name, ok := c.Annotations[betaClassAnnotation]; ok {
			return name
		}
		if c.Spec.StorageClassName != nil {
			return *c.Spec.StorageClassName
		}
		return ""
	}
	name := className(pvc)
	if name == "" || className(old) == "" {
		return false
	}
	class, err := p.lister.Get(name)
	if err != nil {
		if class, err = p.kube.StorageV1().StorageClasses().Get(ctx, name, metav1.GetOptions{}); err != nil {
			return false
		}
	}
	return ptr.Deref(class.AllowVolumeExpansion, false)
}

// defaultIngressClass is the plugin DefaultIngressClass. It sets the default class in new Ingresses
// that do not name one.
type defaultIngressClass struct {
	operations
	lister networkinglisters.IngressClassLister
	gate   *syncgate.Gate
}

// newDefaultIngressClass creates the plugin DefaultIngressClass. It returns nil, which disables the plugin, if
// IngressClasses are not served.
func newDefaultIngressClass(cfg *Config) (admission.Interface, error) {
	if !cfg.Serves(networkingv1.SchemeGroupVersion.WithResource("ingressclasses")) {
		return nil, nil
	}
	inf := cfg.Informers.Networking().V1().IngressClasses()
	return &defaultIngressClass{operations: onCreate, lister: inf.Lister(), gate: syncgate.NewGate(inf.Informer().HasSyncedChecker())}, nil
}

// Admit sets the class of a new Ingress that names none, neither in its spec nor in the former annotation, to the
// newest default class. It does nothing if there is no default class.
func (p *defaultIngressClass) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	ing, ok := a.GetObject().(*networkingv1.Ingress)
	if !ok || !isRequestFor(a, networkingv1.GroupName, "ingresses") || ing.Spec.IngressClassName != nil {
		return nil
	}
	if ing.Annotations["kubernetes.io/ingress.class"] != "" {
		return nil
	}
	if err := p.gate.Wait(ctx); err != nil {
		return apierrors.NewInternalError(err)
	}
	all, err := p.lister.List(labels.Everything())
	if err != nil {
		return admission.NewForbidden(a, err)
	}
	class, ok := newestDefault(all, func(c *networkingv1.IngressClass) bool {
		return c.Annotations[networkingv1.AnnotationIsDefaultIngressClass] == "true"
	})
	if ok {
		name := class.Name
		ing.Spec.IngressClassName = &name
	}
	return nil
}
