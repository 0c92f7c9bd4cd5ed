# episodic_warnings(TARGET): the warnings our own code is held to; errors with EPISODIC_WERROR.
function(episodic_warnings target)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wextra-semi>
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${EPISODIC_WERROR}>>:-Werror>)
endfunction()
