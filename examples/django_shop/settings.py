SECRET_KEY = "of this example"
USE_TZ = True
INSTALLED_APPS = ["mirrorq.contrib.django"]
CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.filebased.FileBasedCache",
        "LOCATION": "cache",
    }
}
TASKS = {
    "default": {
        "BACKEND": "mirrorq.contrib.django.backend.MirrorQBackend",
        "OPTIONS": {"result_cache": "default"},  # where it connects to: $MIRRORQ_URL
    }
}
